"""`postroom dead replay`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from postroom import Key, Message
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.acts import Act, preview, report
from postroom.cli.dead.letters import Fitting, Group, Source, Topic, letters, lines
from postroom.cli.options import Inbox, Json, Outbox, Prefix, RoomOption, Schema, Url, Yes
from postroom.cli.place import PAGE, AnyBox, Place
from postroom.errors import ArgumentValueError

REPLAY = Act("replay", "replayed", "dead")


def replay(
    message_ids: Annotated[list[str] | None, typer.Argument(help="Which messages; otherwise those that fit.")] = None,
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    topic: Topic = None,
    source: Source = None,
    group: Group = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the box.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most; all by default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be replayed.")] = False,
    yes: Yes = False,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Let dead letters be tried again: those named, or those that fit. Asks before it replays what was not named."""
    fitting = Fitting(topic=topic, source=source, group=group)
    if message_ids and (topic or group or everything or limit):
        raise typer.BadParameter("name messages, or say which fit, but not both")
    if not message_ids and not everything and not any(fitting.values()):
        raise typer.BadParameter("name messages, or say which fit, or say --all")
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        if message_ids:
            chosen = [place.wait(box.get(message_id, source)) for message_id in message_ids]
        else:
            chosen = list(letters(place, box, fitting, limit))
        check_order(place, chosen)
        if chosen and not message_ids:
            if not json:
                preview(chosen, lines)
            if not yes and not dry_run:
                question = f"replay {len(chosen)} dead letters of {box.box.kind} {box.name!r}?"
                typer.confirm(question, abort=True, err=True)
        replayed = [] if dry_run else replay_all(place, box, chosen)
    report(REPLAY, box, [letter.key for letter in chosen], replayed, dry_run=dry_run, json=json)


def check_order(place: Place, chosen: Sequence[Message[Any]]) -> None:
    """Only a room's declaration says whether groups are in order; guessing wrong would break it."""
    if not place.is_declared and any(letter.group is not None for letter in chosen):
        raise ArgumentValueError(
            "some of these have a group, and a URL does not say whether its box is FIFO: pass --room MODULE:ROOM"
        )


def replay_all(place: Place, box: AnyBox, chosen: Sequence[Message[Any]]) -> list[Key]:
    """By their ids: what dies while this goes on is not replayed again and again."""
    replayed: list[Key] = []
    for start in range(0, len(chosen), PAGE):
        replayed += place.wait(box.replay(chosen[start : start + PAGE]))
    return replayed
