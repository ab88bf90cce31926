"""`postroom purge`: delete what is finished and old."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from postroom import State
from postroom._kernel.queries import Purge
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.options import (
    Age,
    Inboxes,
    Json,
    Outboxes,
    Prefix,
    RoomArgument,
    Schema,
    Url,
    Yes,
    box_table,
    console,
    counted,
    print_json,
)
from postroom.cli.place import AnyBox, Place, pages


class Finished(StrEnum):
    """What this command deletes. Dead letters have `dead purge`."""

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
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete old finished messages. Without names: in all boxes of the room, or of the database.

    Where that forgets keys by which an inbox knows duplicates, it says how many they are, and asks.
    """
    if json and not yes:
        raise typer.BadParameter("--json does not ask: add --yes", param_hint="--yes")
    if reap and room is None:
        raise typer.BadParameter("what becomes of an expired message is said by its room: pass MODULE:ROOM")
    if state is Finished.SEEN and older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    if older_than is not None:
        state = state or Finished.DONE
    with Place.of(room, url, prefix, schema) as place:
        boxes = place.boxes(inbox, outbox)
        if not yes:
            ask(forgotten_keys(place, boxes, state, older_than))
        rows = [
            {
                "kind": face.box.kind,
                "name": face.name,
                "reaped": sum(place.wait(face.reap())) if reap else 0,
                "deleted": place.wait(face.purge(state, older_than=older_than)),
            }
            for face in boxes
        ]
    if json:
        print_json({"store": place.room.store.name, "boxes": rows})
    else:
        show(rows)


def forgotten_keys(
    place: Place, boxes: Sequence[AnyBox], state: Finished | None, older_than: timedelta | None
) -> dict[str, int]:
    """How many keys a purge would forget, for each inbox where it would forget any.

    It reads the messages, page by page: stores do not count by age.
    """
    found = {
        face.name: sum(
            count_old(place, face, Purge(each, age)) for each, age in purged_ages(face, state, older_than).items()
        )
        for face in boxes
        if face.box.kind == "inbox"
    }
    return {name: count for name, count in found.items() if count}


def purged_ages(face: AnyBox, state: Finished | None, older_than: timedelta | None) -> dict[State, timedelta]:
    keeping = face.box.keeping
    return keeping.ages if state is None else {State(state): keeping.retention if older_than is None else older_than}


def count_old(place: Place, face: AnyBox, purge: Purge) -> int:
    now = datetime.now(UTC)
    found = pages(place, partial(face.find, states=[purge.state]))
    return sum(purge.takes(message, face.box.keeping, now) for message in found)


def ask(forgotten: dict[str, int]) -> None:
    for name, count in forgotten.items():
        keys = counted(count, "deduplication key")
        typer.echo(f"inbox {name!r}: this forgets {keys}; a message that is delivered again is new", err=True)
    if forgotten:
        typer.confirm("delete?", abort=True, err=True)


def show(rows: list[dict[str, Any]]) -> None:
    table = box_table("reaped", "deleted")
    for row in rows:
        table.add_row(row["kind"], row["name"], f"{row['reaped']:,}", f"{row['deleted']:,}")
    console().print(table)
