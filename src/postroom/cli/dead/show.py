"""`postroom dead show`."""

from __future__ import annotations

import json as to_json
from typing import Annotated

import typer

from postroom.cli.dead.formatting import clean, describe
from postroom.cli.option_sets import OneBox, Target
from postroom.cli.session import ChosenStore, Visited


def show(
    message_id: Annotated[str, typer.Argument(help="The message's id, as its sender gave it.")],
    *,
    one: OneBox,
    source: Annotated[str | None, typer.Option(help="Its source, where several have this id.")] = None,
    payload: Annotated[bool, typer.Option("--payload", help="The payload too: it may be private.")] = False,
    target: Target,
) -> None:
    """Show all that is known of a message: its error, its times, its headers. Works in any state."""

    async def find(store: ChosenStore) -> dict[str, object]:
        return describe(await (await one.of(store)).get(message_id, source), payload=payload)

    with target.open() as session:
        session.check_one("a message")
        found = session.each(find)
        if target.json:
            session.print_json(found)
        else:
            session.print_each([Visited(key, _text(known)) for key, known in found], empty="")


def _text(known: dict[str, object]) -> str:
    width = max(map(len, known))
    return "\n".join(_line(name, clean(_as_text(value)), width) for name, value in known.items())


def _line(name: str, value: str, width: int) -> str:
    """Returns a line of any length: a terminal folds it without loss, and a copy from there is still one line.

    Further lines of the value are indented, so that none of them looks like another value.
    """
    return f"{name:<{width}}  {value}".rstrip().replace("\n", f"\n{'':<{width}}  ")


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json.dumps(value, indent=2, ensure_ascii=False)
