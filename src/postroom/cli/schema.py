"""`postroom migrate` and `postroom schema`: the tables."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.options import Json, Prefix, Url, print_json
from postroom.sync import Postroom


def migrate(*, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, json: Json = False) -> None:
    """Make or update the tables. Safe to repeat, and to run everywhere."""
    with Postroom(url, prefix=prefix) as room:
        applied = room.migrate()
        name = room.store.name
    if json:
        print_json({"store": name, "applied": applied})
    elif applied:
        typer.echo(f"{name}: applied schema version {', '.join(map(str, applied))}")
    else:
        typer.echo(f"{name}: nothing to do")


def schema(
    *,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    sql: Annotated[bool, typer.Option("--sql", help="Print it as SQL.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it as SQL in JSON, for programs.")] = False,
) -> None:
    """Print the tables, for those who deploy schemas in their own way. Nothing is opened or made."""
    if not sql and not json:
        raise typer.BadParameter("say --sql: SQL is the only form there is", param_hint="--sql")
    room = Postroom(url, prefix=prefix)
    script = room.schema_script()
    if json:
        print_json({"store": room.store.name, "sql": script})
    else:
        typer.echo(script, nl=False)
