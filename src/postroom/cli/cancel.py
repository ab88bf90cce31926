"""`postroom cancel`: end waiting messages before they are handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import partial
from typing import Annotated

import typer

from postroom import Key, State
from postroom._kernel.message import AnyMessage
from postroom._kernel.queries import Filter
from postroom._kernel.texts import escape
from postroom.cli.actions import Action, ActionOptions, Changed, Found, change, report
from postroom.cli.dead.formatting import about
from postroom.cli.option_sets import Consent, Filters, OneBox, Target
from postroom.cli.options import Limit, MessageIds
from postroom.cli.session import AnyBox, ChosenStore, Visited, first, pages

CANCEL = Action("cancel", "cancelled", "waiting message", "waiting")


def cancel(
    message_ids: MessageIds = None,
    *,
    one: OneBox,
    ids: Annotated[
        list[int] | None, typer.Option("--id", metavar="ID", min=1, help="The id of a receipt; may be repeated.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only those of this correlation id.")] = None,
    filters: Filters,
    limit: Limit = None,
    consent: Consent,
    target: Target,
) -> None:
    """End waiting messages as done: those named, or those that fit. Without names, it asks for confirmation."""
    named = bool(message_ids or ids)
    if named and any((filters.topic, filters.group, correlation_id, limit)):
        raise typer.BadParameter("name messages, or say which fit, but not both")
    if not named and not any((correlation_id, *astuple(filters))):
        raise typer.BadParameter("name messages, or say which fit: --correlation-id, --topic, --source or --group")
    options = ActionOptions(named, consent, target.json)
    options.check()

    async def find(store: ChosenStore) -> Found:
        box = await one.of(store)
        if named:
            return Found(box.box, await named_messages(store, box, message_ids or (), filters.source, ids or ()))
        waiting = partial(box.find, states=[State.WAITING], correlation_id=correlation_id, **asdict(filters))
        return Found(box.box, await first(pages(waiting), limit))

    with target.open() as session:
        if named:
            session.check_one("a message")
        found = session.each(find)
        changed = change(CANCEL, session, found, options, lines, lambda box: box.cancel, one.of)
        if consent.dry_run:
            changed = [Visited(key, Changed(value.box, waiting_keys(value.messages), [])) for key, value in found]
        report(CANCEL, session, changed, options)


def waiting_keys(messages: Sequence[AnyMessage]) -> list[Key]:
    return [message.key for message in messages if message.state is State.WAITING]


async def named_messages(
    store: ChosenStore, box: AnyBox, message_ids: Sequence[str], source: str | None, ids: Sequence[int]
) -> list[AnyMessage]:
    """In any state: what does not wait is left alone, and counted."""
    chosen: list[AnyMessage] = [await box.get(message_id, source) for message_id in message_ids]
    if ids:
        chosen += await store.store.find(box.box, Filter(ids=tuple(ids), limit=len(ids)))
    return chosen


def lines(found: Sequence[AnyMessage]) -> str:
    return "\n".join(f"{escape(message.message_id)}  {about(message)}\n    {_times(message)}" for message in found)


def _times(message: AnyMessage) -> str:
    due = f", due {message.due:%Y-%m-%d %H:%M:%S} UTC" if message.due else ""
    return f"waiting since {message.first_seen:%Y-%m-%d %H:%M:%S} UTC{due}"
