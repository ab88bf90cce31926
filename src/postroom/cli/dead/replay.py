"""`postroom dead replay`."""

from __future__ import annotations

from dataclasses import asdict, astuple
from functools import partial
from typing import Annotated

import typer

from postroom.cli.actions import Action, ActionOptions, Found, change, report
from postroom.cli.dead.formatting import lines
from postroom.cli.option_sets import Consent, Filters, OneBox, Target
from postroom.cli.options import Limit, MessageIds
from postroom.cli.session import ChosenStore, first, pages

REPLAY = Action("replay", "replayed", "dead letter", "dead")


def replay(
    message_ids: MessageIds = None,
    *,
    one: OneBox,
    filters: Filters,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the box.")] = False,
    limit: Limit = None,
    consent: Consent,
    target: Target,
) -> None:
    """Make dead letters wait again: those named, or those that fit. Without names, it asks for confirmation."""
    if message_ids and (filters.topic or filters.group or everything or limit):
        raise typer.BadParameter("name messages, or say which fit, but not both")
    if not message_ids and not everything and not any(astuple(filters)):
        raise typer.BadParameter("name messages, or say which fit, or say --all")
    options = ActionOptions(bool(message_ids), consent, target.json)
    options.check()

    async def find(store: ChosenStore) -> Found:
        box = await one.of(store)
        if message_ids:
            return Found(box.box, [await box.get(message_id, filters.source) for message_id in message_ids])
        return Found(box.box, await first(pages(partial(box.dead_letters, **asdict(filters))), limit))

    with target.open() as session:
        if message_ids:
            session.check_one("a message")
        changed = change(REPLAY, session, session.each(find), options, lines, lambda box: box.replay, one.of)
        report(REPLAY, session, changed, options)
