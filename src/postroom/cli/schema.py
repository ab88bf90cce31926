"""`postroom migrate` and `postroom schema`: the tables."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroom import Postroom
from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom.cli.options import Json, Prefix, RoomArgument, Schema, Url, print_json
from postroom.cli.session import room_at
from postroom.spi import Migrator, Store


def migrate(
    room: RoomArgument = None,
    *,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Make or update the tables. Safe to repeat, and to run everywhere."""
    store, applied = asyncio.run(_migrate(room_at(room, url, prefix, schema)))
    name = store.name
    if json:
        print_json({"store": name, "applied": applied})
    elif applied:
        typer.echo(f"{name}: applied schema version {', '.join(map(str, applied))}")
    elif isinstance(store, Migrator):
        typer.echo(f"{name}: nothing to do")
    else:
        typer.echo(f"{name}: there are no tables to make in such a store; it was not opened")


async def _migrate(room: Postroom) -> tuple[Store, list[int]]:
    try:
        return room.store, await room.migrate()
    finally:
        await room.close()


def schema(
    room: RoomArgument = None,
    *,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    sql: Annotated[bool, typer.Option("--sql", help="Print SQL: the default, and the only form.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the SQL in JSON, for programs.")] = False,
) -> None:
    """Print the tables as SQL, for deployment by other tools. Nothing is opened or created."""
    chosen = room_at(room, url, schema=schema, prefix=prefix)
    script = chosen.schema_script()
    if json:
        print_json({"store": chosen.store.name, "sql": script})
    elif sql:
        typer.echo(script, nl=False)
