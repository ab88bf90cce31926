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
from postroom.cli.acts import ask, check_silent, title
from postroom.cli.option_sets import Boxes
from postroom.cli.options import Age, Json, Yes, box_table, console, counted, print_json
from postroom.cli.place import AnyBox, Place, pages


class Finished(StrEnum):
    """What this command deletes. Dead letters have `dead purge`."""

    DONE = "done"
    SEEN = "seen"


def purge(
    *,
    where: Boxes,
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

    Before it deletes any, it says how many they are in each box, and asks.
    """
    check_silent(json=json, yes=yes)
    if reap and where.room is None:
        raise typer.BadParameter("what becomes of an expired message is said by its room: pass MODULE:ROOM")
    if state is Finished.SEEN and older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    if older_than is not None:
        state = state or Finished.DONE
    with where.open() as place:
        boxes = where.of(place)
        if not yes:
            found = [(face, count_all_old(place, face, state, older_than)) for face in boxes]
            confirm([describe_loss(face, counts) for face, counts in found if counts])
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


def describe_loss(face: AnyBox, counts: dict[State, int]) -> str:
    """What a purge of this many messages means: an inbox knows duplicates by the messages that it keeps."""
    if face.box.kind == "inbox":
        keys = counted(sum(counts.values()), "deduplication key")
        lost = f"this forgets {keys}; a message that is delivered again is new"
    else:
        lost = "this deletes " + ", ".join(counted(count, f"{state} message") for state, count in counts.items())
    return f"{title(face)}: {lost}"


def count_all_old(place: Place, face: AnyBox, state: Finished | None, older_than: timedelta | None) -> dict[State, int]:
    """How many messages of each state a purge would delete, where it would delete any.

    It reads the messages, page by page: stores do not count by age.
    """
    counts = {
        each: count_old(place, face, Purge(each, age)) for each, age in purged_ages(face, state, older_than).items()
    }
    return {each: count for each, count in counts.items() if count}


def purged_ages(face: AnyBox, state: Finished | None, older_than: timedelta | None) -> dict[State, timedelta]:
    keeping = face.box.keeping
    return keeping.ages if state is None else {State(state): keeping.retention if older_than is None else older_than}


def count_old(place: Place, face: AnyBox, purge: Purge) -> int:
    now = datetime.now(UTC)
    found = pages(place, partial(face.find, states=[purge.state]))
    return sum(purge.takes(message, face.box.keeping, now) for message in found)


def confirm(losses: Sequence[str]) -> None:
    for loss in losses:
        typer.echo(loss, err=True)
    if losses:
        ask("delete?")


def show(rows: list[dict[str, Any]]) -> None:
    table = box_table("reaped", "deleted")
    for row in rows:
        table.add_row(row["kind"], row["name"], f"{row['reaped']:,}", f"{row['deleted']:,}")
    console().print(table)
