"""`postroom cancel`: end waiting messages before they are handled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any

import typer

from postroom import Key, Message, State
from postroom._kernel.queries import Filter
from postroom._kernel.texts import escape
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.acts import Act, preview, report
from postroom.cli.dead.letters import Group, Source, Topic, about
from postroom.cli.dead.replay import check_order
from postroom.cli.options import Inbox, Json, Outbox, Prefix, RoomOption, Schema, Url, Yes
from postroom.cli.place import PAGE, AnyBox, Place, pages

CANCEL = Act("cancel", "cancelled", "waiting")


def cancel(
    message_ids: Annotated[list[str] | None, typer.Argument(help="Which messages; otherwise those that fit.")] = None,
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    ids: Annotated[
        list[int] | None, typer.Option("--id", metavar="ID", min=1, help="The id of a receipt; may be repeated.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only those of this correlation id.")] = None,
    topic: Topic = None,
    source: Source = None,
    group: Group = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most; all by default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be cancelled.")] = False,
    yes: Yes = False,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """End waiting messages as done: those named, or those that fit. Asks before it cancels what was not named."""
    named = bool(message_ids or ids)
    if named and any((topic, group, correlation_id, limit)):
        raise typer.BadParameter("name messages, or say which fit, but not both")
    if not named and not any((topic, source, group, correlation_id)):
        raise typer.BadParameter("name messages, or say which fit: --correlation-id, --topic, --source or --group")
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        if named:
            chosen = named_messages(place, box, message_ids or (), source, ids or ())
        else:
            find = partial(
                box.find,
                states=[State.WAITING],
                topic=topic,
                source=source,
                group=group,
                correlation_id=correlation_id,
            )
            chosen = list(islice(pages(place, find), limit))
        check_order(place, chosen)
        if chosen and not named:
            if not json:
                preview(chosen, lines)
            if not yes and not dry_run:
                question = f"cancel {len(chosen)} waiting messages of {box.box.kind} {box.name!r}?"
                typer.confirm(question, abort=True, err=True)
        cancelled = [] if dry_run else cancel_all(place, box, chosen)
    waiting = [message.key for message in chosen if message.state is State.WAITING or not dry_run]
    report(CANCEL, box, waiting, cancelled, dry_run=dry_run, json=json)


def named_messages(
    place: Place, box: AnyBox, message_ids: Sequence[str], source: str | None, ids: Sequence[int]
) -> list[Message[Any]]:
    """In any state: what does not wait is left alone, and counted."""
    chosen = [place.wait(box.get(message_id, source)) for message_id in message_ids]
    if ids:
        chosen += place.wait(place.room.store.find(box.box, Filter(ids=tuple(ids), limit=len(ids))))
    return chosen


def cancel_all(place: Place, box: AnyBox, chosen: Sequence[Message[Any]]) -> list[Key]:
    """By their ids: what is enqueued while this goes on is not cancelled."""
    cancelled: list[Key] = []
    for start in range(0, len(chosen), PAGE):
        cancelled += place.wait(box.cancel(chosen[start : start + PAGE]))
    return cancelled


def lines(found: Sequence[Message[Any]]) -> str:
    return "\n".join(f"{escape(message.message_id)}  {about(message)}\n    {_times(message)}" for message in found)


def _times(message: Message[Any]) -> str:
    due = f", due {message.due:%Y-%m-%d %H:%M:%S} UTC" if message.due else ""
    return f"waiting since {message.first_seen:%Y-%m-%d %H:%M:%S} UTC{due}"
