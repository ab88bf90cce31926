"""`postroom cancel`: end waiting messages before they are handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import partial
from itertools import islice
from typing import Annotated, Any

import typer

from postroom import Message, State
from postroom._kernel.queries import Filter
from postroom._kernel.texts import escape
from postroom.cli.acts import Act, Ways, by_pages, confirm, report
from postroom.cli.dead.letters import about
from postroom.cli.option_sets import Consent, Fitting, OneBox, Target
from postroom.cli.options import Limit, MessageIds
from postroom.cli.place import AnyBox, Place, pages

CANCEL = Act("cancel", "cancelled", "waiting message", "waiting")


def cancel(
    message_ids: MessageIds = None,
    *,
    one: OneBox,
    ids: Annotated[
        list[int] | None, typer.Option("--id", metavar="ID", min=1, help="The id of a receipt; may be repeated.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only those of this correlation id.")] = None,
    fitting: Fitting,
    limit: Limit = None,
    consent: Consent,
    target: Target,
) -> None:
    """End waiting messages as done: those named, or those that fit. Asks before it cancels what was not named."""
    named = bool(message_ids or ids)
    if named and any((fitting.topic, fitting.group, correlation_id, limit)):
        raise typer.BadParameter("name messages, or say which fit, but not both")
    if not named and not any((correlation_id, *astuple(fitting))):
        raise typer.BadParameter("name messages, or say which fit: --correlation-id, --topic, --source or --group")
    ways = Ways(named, consent, target.json)
    ways.check()
    with target.open() as place:
        box = one.of(place)
        if named:
            chosen = named_messages(place, box, message_ids or (), fitting.source, ids or ())
        else:
            find = partial(box.find, states=[State.WAITING], correlation_id=correlation_id, **asdict(fitting))
            chosen = list(islice(pages(place, find), limit))
        confirm(CANCEL, place, box, chosen, ways, lines)
        cancelled = [] if consent.dry_run else by_pages(place, box.cancel, chosen)
    waiting = [message.key for message in chosen if message.state is State.WAITING or not consent.dry_run]
    report(CANCEL, box, waiting, cancelled, ways)


def named_messages(
    place: Place, box: AnyBox, message_ids: Sequence[str], source: str | None, ids: Sequence[int]
) -> list[Message[Any]]:
    """In any state: what does not wait is left alone, and counted."""
    chosen = [place.wait(box.get(message_id, source)) for message_id in message_ids]
    if ids:
        chosen += place.wait(place.room.store.find(box.box, Filter(ids=tuple(ids), limit=len(ids))))
    return chosen


def lines(found: Sequence[Message[Any]]) -> str:
    return "\n".join(f"{escape(message.message_id)}  {about(message)}\n    {_times(message)}" for message in found)


def _times(message: Message[Any]) -> str:
    due = f", due {message.due:%Y-%m-%d %H:%M:%S} UTC" if message.due else ""
    return f"waiting since {message.first_seen:%Y-%m-%d %H:%M:%S} UTC{due}"
