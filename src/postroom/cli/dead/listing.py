"""`postroom dead list`."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.dead.letters import Fitting, Group, Source, Topic, describe, lines
from postroom.cli.options import Inbox, Json, Outbox, Prefix, RoomOption, Schema, Url, print_json
from postroom.cli.place import Place


def list_letters(
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    topic: Topic = None,
    source: Source = None,
    group: Group = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    after: Annotated[int, typer.Option(min=0, help="Only those after this id: the last one of the page before.")] = 0,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """List dead letters, the oldest first."""
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        fitting = Fitting(topic=topic, source=source, group=group)
        found = place.wait(box.dead_letters(**fitting, after=after, limit=limit))
    following = found[-1].id if len(found) == limit else None
    if json:
        print_json({"box": box.box.key, "messages": [describe(letter) for letter in found], "next": following})
    elif not found:
        typer.echo("there are none")
    else:
        typer.echo(lines(found))
        if following is not None:
            typer.echo(f"there may be more: --after {following}")
