"""`postroom dead replay`."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated

import typer

from postroom.cli.acts import Act, Ways, by_pages, confirm, report
from postroom.cli.dead.letters import letters, lines
from postroom.cli.option_sets import Consent, Fitting, OneBox, Target
from postroom.cli.options import Limit, MessageIds

REPLAY = Act("replay", "replayed", "dead letter", "dead")


def replay(
    message_ids: MessageIds = None,
    *,
    one: OneBox,
    fitting: Fitting,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the box.")] = False,
    limit: Limit = None,
    consent: Consent,
    target: Target,
) -> None:
    """Let dead letters be tried again: those named, or those that fit. Asks before it replays what was not named."""
    if message_ids and (fitting.topic or fitting.group or everything or limit):
        raise typer.BadParameter("name messages, or say which fit, but not both")
    if not message_ids and not everything and not any(astuple(fitting)):
        raise typer.BadParameter("name messages, or say which fit, or say --all")
    ways = Ways(bool(message_ids), consent, target.json)
    ways.check()
    with target.open() as place:
        box = one.of(place)
        if message_ids:
            chosen = [place.wait(box.get(message_id, fitting.source)) for message_id in message_ids]
        else:
            chosen = list(letters(place, box, fitting, limit))
        confirm(REPLAY, place, box, chosen, ways, lines)
        replayed = [] if consent.dry_run else by_pages(place, box.replay, chosen)
    report(REPLAY, box, [letter.key for letter in chosen], replayed, ways)
