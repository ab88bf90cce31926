"""The options that several commands take, and how commands print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from postroom._connect import ENVIRONMENT
from postroom.cli.durations import parse

# Typer does not read the variable: the room does, and says what to do where both are missing.
Url = Annotated[
    str | None,
    typer.Option(help=f"The database, such as sqlite:///shop.db. By default, what {ENVIRONMENT} says."),
]
Prefix = Annotated[str, typer.Option(help="What the names of tables, or of keys in Redis, begin with.")]
Schema = Annotated[
    str | None, typer.Option(metavar="NAME", help="The database schema that the tables are in, on PostgreSQL.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_NO_END = 100_000
_PATH = "MODULE:ROOM"
RoomArgument = Annotated[
    str | None, typer.Argument(metavar=_PATH, help="A room in a module, such as shop:room, instead of --url.")
]
RoomOption = Annotated[
    str | None, typer.Option("--room", metavar=_PATH, help="A room in a module, such as shop:room, instead of --url.")
]

StoresFile = Annotated[
    Path | None,
    typer.Option(
        "--stores", metavar="FILE", exists=True, dir_okay=False, help="Many stores, from a TOML file, instead of --url."
    ),
]
StoreKeys = Annotated[
    list[str] | None, typer.Option("--store", metavar="KEY", help="Of many stores only this one; may be repeated.")
]
Inbox = Annotated[str | None, typer.Option(metavar="NAME", help="The inbox of this name.")]
Outbox = Annotated[str | None, typer.Option(metavar="NAME", help="The outbox of this name.")]
Inboxes = Annotated[list[str] | None, typer.Option("--inbox", metavar="NAME", help="An inbox; may be repeated.")]
Outboxes = Annotated[list[str] | None, typer.Option("--outbox", metavar="NAME", help="An outbox; may be repeated.")]
MessageIds = Annotated[list[str] | None, typer.Argument(help="Which messages; otherwise those that fit.")]
Limit = Annotated[int | None, typer.Option(min=1, help="How many at most in a store; all by default.")]

Age = Annotated[
    timedelta | None, typer.Option(parser=parse, metavar="DURATION", help="Only what is older, such as 12h or 30d.")
]


def console(*, quiet: bool = False) -> Console:
    """Returns a console that prints texts unchanged, without markup. Lines in a pipe or a file are not folded."""
    made = Console(quiet=quiet, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _NO_END
    return made


def box_table(*numbers: str, with_stores: bool = False) -> Table:
    """Returns a table of boxes. A narrow terminal folds names, since a name that is cut cannot be copied."""
    stores = [Column("store", overflow="fold")] if with_stores else []
    made = Table(*stores, Column("box"), Column("name", overflow="fold"))
    for name in numbers:
        made.add_column(name, justify="right", overflow="fold")
    return made


def print_json(value: Mapping[str, object], *, one_line: bool = False) -> None:
    """Prints a value as JSON: with `one_line` as one of many lines."""
    typer.echo(json.dumps(value, indent=None if one_line else 2))


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: 1 group, 2 groups."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
