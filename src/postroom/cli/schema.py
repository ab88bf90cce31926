"""`postroom migrate` and `postroom schema`: the tables."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom import Postroom
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.options import Json, Prefix, Schema, Url, print_json
from postroom.cli.place import Place


def migrate(*, url: Url = None, schema: Schema = None, prefix: Prefix = DEFAULT_PREFIX, json: Json = False) -> None:
    """Make or update the tables. Safe to repeat, and to run everywhere."""
    with Place.of(None, url, prefix, schema) as place:
        applied = place.wait(place.room.migrate())
        name = place.room.store.name
    if json:
        print_json({"store": name, "applied": applied})
    elif applied:
        typer.echo(f"{name}: applied schema version {', '.join(map(str, applied))}")
    else:
        typer.echo(f"{name}: nothing to do")


def schema(
    *,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    sql: Annotated[bool, typer.Option("--sql", help="Print it as SQL.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it as SQL in JSON, for programs.")] = False,
) -> None:
    """Print the tables, for those who deploy schemas in their own way. Nothing is opened or made."""
    if not sql and not json:
        raise typer.BadParameter("say --sql: SQL is the only form there is", param_hint="--sql")
    room = Postroom(url, prefix=prefix, schema=schema)
    script = room.schema_script()
    if json:
        print_json({"store": room.store.name, "sql": script})
    else:
        typer.echo(script, nl=False)
