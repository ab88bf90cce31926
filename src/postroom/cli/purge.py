"""`postroom purge`: delete what is finished and old."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import typer

from postroom import State
from postroom._kernel.queries import Purge
from postroom.cli.actions import ask, check_silent, title
from postroom.cli.option_sets import Boxes
from postroom.cli.options import Age, Json, Yes, box_table, console, counted, print_json
from postroom.cli.session import AnyBox, Session, pages


class Finished(StrEnum):
    """The states that this command deletes. Dead letters have `dead purge`."""

    DONE = "done"
    SEEN = "seen"


class Purged(NamedTuple):
    """The result for one box."""

    kind: str
    name: str
    reaped: int
    deleted: int


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
    with where.open() as session:
        boxes = where.of(session)
        if not yes:
            found = [(box, count_all_old(session, box, state, older_than)) for box in boxes]
            confirm([describe_loss(box, counts) for box, counts in found if counts])
        rows = [
            Purged(
                kind=box.box.kind,
                name=box.name,
                reaped=sum(session.wait(box.reap())) if reap else 0,
                deleted=session.wait(box.purge(state, older_than=older_than)),
            )
            for box in boxes
        ]
    if json:
        print_json({"store": session.room.store.name, "boxes": [row._asdict() for row in rows]})
    else:
        show(rows)


def describe_loss(box: AnyBox, counts: dict[State, int]) -> str:
    """Returns what a purge of so many messages loses: an inbox recognises duplicates by the messages that it keeps."""
    if box.box.kind == "inbox":
        keys = counted(sum(counts.values()), "deduplication key")
        lost = f"this forgets {keys}; a message that is delivered again is new"
    else:
        lost = "this deletes " + ", ".join(counted(count, f"{state} message") for state, count in counts.items())
    return f"{title(box)}: {lost}"


def count_all_old(
    session: Session, box: AnyBox, state: Finished | None, older_than: timedelta | None
) -> dict[State, int]:
    """Returns how many messages of each state a purge would delete, without states that have none.

    It reads the messages, page by page: stores do not count by age.
    """
    counts = {
        each: count_old(session, box, Purge(each, age)) for each, age in purged_ages(box, state, older_than).items()
    }
    return {each: count for each, count in counts.items() if count}


def purged_ages(box: AnyBox, state: Finished | None, older_than: timedelta | None) -> dict[State, timedelta]:
    retention = box.box.retention
    return retention.ages if state is None else {State(state): retention.done_age if older_than is None else older_than}


def count_old(session: Session, box: AnyBox, purge: Purge) -> int:
    now = datetime.now(UTC)
    found = pages(session, partial(box.find, states=[purge.state]))
    return sum(purge.takes(message, box.box.retention, now) for message in found)


def confirm(losses: Sequence[str]) -> None:
    for loss in losses:
        typer.echo(loss, err=True)
    if losses:
        ask("delete?")


def show(rows: list[Purged]) -> None:
    table = box_table("reaped", "deleted")
    for row in rows:
        table.add_row(row.kind, row.name, f"{row.reaped:,}", f"{row.deleted:,}")
    console().print(table)
