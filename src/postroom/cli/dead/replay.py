"""`postroom dead replay`."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated

import typer

from postroom.cli.actions import Action, ActionOptions, by_pages, confirm, report
from postroom.cli.dead.formatting import find_letters, lines
from postroom.cli.option_sets import Consent, Filters, OneBox, Target
from postroom.cli.options import Limit, MessageIds

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
    with target.open() as session:
        box = one.of(session)
        if message_ids:
            chosen = [session.wait(box.get(message_id, filters.source)) for message_id in message_ids]
        else:
            chosen = list(find_letters(session, box, filters, limit))
        confirm(REPLAY, session, box, chosen, options, lines)
        replayed = [] if consent.dry_run else by_pages(session, box.replay, chosen)
    report(REPLAY, box, [letter.key for letter in chosen], replayed, options)
