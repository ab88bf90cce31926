"""What several commands take, and how they answer."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from postroom._connect import ENVIRONMENT

# Typer does not read the variable: the room does, and says what to do where both are missing.
Url = Annotated[
    str | None,
    typer.Option(help=f"The database, such as sqlite:///shop.db. By default, what {ENVIRONMENT} says."),
]
Prefix = Annotated[str, typer.Option(help="What the tables' names begin with.")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]


def print_json(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2))
