"""`postroom dead show`."""

from __future__ import annotations

import json as to_json
from typing import Annotated

import typer

from postroom.cli.dead.formatting import clean, describe
from postroom.cli.option_sets import OneBox, Target
from postroom.cli.options import print_json


def show(
    message_id: Annotated[str, typer.Argument(help="The message's id, as its sender gave it.")],
    *,
    one: OneBox,
    source: Annotated[str | None, typer.Option(help="Its source, where several have this id.")] = None,
    payload: Annotated[bool, typer.Option("--payload", help="The payload too: it may be private.")] = False,
    target: Target,
) -> None:
    """Show all that is known of a message: its error, its times, its headers. Works in any state."""
    with target.open() as session:
        message = session.wait(one.of(session).get(message_id, source))
    known = describe(message, payload=payload)
    if target.json:
        print_json(known)
        return
    for name, value in known.items():
        typer.echo(_line(name, clean(_as_text(value)), max(map(len, known))))


def _line(name: str, value: str, width: int) -> str:
    """Returns a line of any length: a terminal folds it without loss, and a copy from there is still one line.

    Further lines of the value are indented, so that none of them looks like another value.
    """
    return f"{name:<{width}}  {value}".rstrip().replace("\n", f"\n{'':<{width}}  ")


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json.dumps(value, indent=2, ensure_ascii=False)
