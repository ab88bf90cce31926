"""`postroom purge`: delete what is finished and old."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.options import Age, Inboxes, Json, Outboxes, Prefix, RoomArgument, Schema, Url, console, print_json
from postroom.cli.place import Place


class Finished(StrEnum):
    """What can be purged without a second thought. Dead letters have a command of their own, which asks."""

    DONE = "done"
    SEEN = "seen"


def purge(
    room: RoomArgument = None,
    *,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    inbox: Inboxes = None,
    outbox: Outboxes = None,
    state: Annotated[
        Finished | None, typer.Option(help="What to delete. By default, what the boxes' retention says.")
    ] = None,
    older_than: Age = None,
    reap: Annotated[
        bool, typer.Option("--reap", help="First free passed leases and bury expired messages; needs MODULE:ROOM.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete old finished messages. Without names: in all boxes of the room, or of the database."""
    if reap and room is None:
        raise typer.BadParameter("what becomes of an expired message is said by its room: pass MODULE:ROOM")
    if state is Finished.SEEN and older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    if older_than is not None:
        state = state or Finished.DONE
    with Place.of(room, url, prefix, schema) as place:
        rows = [
            {
                "kind": face.box.kind,
                "name": face.name,
                "reaped": sum(place.wait(face.reap())) if reap else 0,
                "deleted": place.wait(face.purge(state, older_than=older_than)),
            }
            for face in place.boxes(inbox, outbox)
        ]
    if json:
        print_json({"store": place.room.store.name, "boxes": rows})
    else:
        show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("box", "name")
    for column in ("reaped", "deleted"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["kind"], row["name"], f"{row['reaped']:,}", f"{row['deleted']:,}")
    console().print(table)
