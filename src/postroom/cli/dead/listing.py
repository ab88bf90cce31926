"""`postroom dead list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from postroom.cli.dead.formatting import describe, lines
from postroom.cli.option_sets import Filters, OneBox, Target
from postroom.cli.options import print_json


def list_letters(
    *,
    one: OneBox,
    filters: Filters,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    after: Annotated[int, typer.Option(min=0, help="Only those after this id: the last one of the page before.")] = 0,
    target: Target,
) -> None:
    """List dead letters, the oldest first."""
    with target.open() as session:
        box = one.of(session)
        found = session.wait(box.dead_letters(**asdict(filters), after=after, limit=limit))
    following = found[-1].id if len(found) == limit else None
    if target.json:
        print_json({"box": box.box.key, "messages": [describe(letter) for letter in found], "next": following})
    elif not found:
        typer.echo("there are none")
    else:
        typer.echo(lines(found))
        if following is not None:
            typer.echo(f"there may be more: --after {following}")
