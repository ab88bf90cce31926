"""`postroom purge`: delete what is finished and old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, TypeAlias

import typer

from postroom import State
from postroom._kernel.policy import Box
from postroom._kernel.queries import Purge
from postroom.cli.actions import ask, check_silent, in_stores, title
from postroom.cli.box_rows import BoxRow, by_box
from postroom.cli.option_sets import Boxes
from postroom.cli.options import Age, Yes, box_table, console, counted
from postroom.cli.session import AnyBox, ChosenStore, Session, Visited, pages


class Finished(StrEnum):
    """The states that this command deletes. Dead letters have `dead purge`."""

    DONE = "done"
    SEEN = "seen"


Losses: TypeAlias = list[tuple[Box, dict[State, int]]]
"""How many messages of each state would be deleted, by box."""


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
) -> None:
    """Delete old finished messages. Without names: in all boxes of the room, or of the database.

    Before it deletes any, it says how many they are in each box, and asks.
    """
    check_silent(json=where.json, yes=yes)
    if reap and where.room is None:
        raise typer.BadParameter("what becomes of an expired message is said by its room: pass MODULE:ROOM")
    if state is Finished.SEEN and older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    if older_than is not None:
        state = state or Finished.DONE

    async def count_losses(store: ChosenStore) -> Losses:
        return [(box.box, await count_all_old(box, state, older_than)) for box in await where.of(store)]

    async def delete(store: ChosenStore) -> tuple[str, list[BoxRow]]:
        return store.name, [await purge_box(box) for box in await where.of(store)]

    async def purge_box(box: AnyBox) -> BoxRow:
        reaped = sum(await box.reap()) if reap else 0
        deleted = await box.purge(state, older_than=older_than)
        return BoxRow(box.box.kind, box.name, {"reaped": reaped, "deleted": deleted})

    with where.open() as session:
        if not yes:
            confirm(describe_losses(session, session.each(count_losses)))
        purged = session.each(delete)
        if where.json:
            session.print_json([Visited(key, as_json(*value)) for key, value in purged])
        else:
            show(by_box(rows for _, (_, rows) in purged))


def describe_losses(session: Session, found: Sequence[Visited[Losses]]) -> list[str]:
    """Returns a line for each box: what a purge loses in it, in all stores together."""
    boxes: dict[str, Box] = {}
    counts: dict[str, Counter[State]] = {}
    stores: Counter[str] = Counter()
    for _, losses in found:
        for box, lost in losses:
            if lost:
                boxes.setdefault(box.key, box)
                counts.setdefault(box.key, Counter()).update(lost)
                stores[box.key] += 1
    return [describe_loss(boxes[key], counts[key], in_stores(session, stores[key])) for key in boxes]


def describe_loss(box: Box, counts: Mapping[State, int], where: str) -> str:
    """Returns what a purge of so many messages loses: an inbox recognises duplicates by the messages that it keeps."""
    if box.kind == "inbox":
        keys = counted(sum(counts.values()), "deduplication key")
        lost = f"this forgets {keys}; a message that is delivered again is new"
    else:
        lost = "this deletes " + ", ".join(counted(count, f"{state} message") for state, count in counts.items())
    return f"{title(box)}{where}: {lost}"


async def count_all_old(box: AnyBox, state: Finished | None, older_than: timedelta | None) -> dict[State, int]:
    """Returns how many messages of each state a purge would delete, without states that have none.

    It reads the messages, page by page: stores do not count by age.
    """
    ages = purged_ages(box, state, older_than)
    counts = {each: await count_old(box, Purge(each, age)) for each, age in ages.items()}
    return {each: count for each, count in counts.items() if count}


def purged_ages(box: AnyBox, state: Finished | None, older_than: timedelta | None) -> dict[State, timedelta]:
    retention = box.box.retention
    return retention.ages if state is None else {State(state): retention.done_age if older_than is None else older_than}


async def count_old(box: AnyBox, purge: Purge) -> int:
    now = datetime.now(UTC)
    found = pages(partial(box.find, states=[purge.state]))
    return sum([purge.takes(message, box.box.retention, now) async for message in found])


def confirm(losses: Sequence[str]) -> None:
    for loss in losses:
        typer.echo(loss, err=True)
    if losses:
        ask("delete?")


def as_json(name: str, rows: Sequence[BoxRow]) -> dict[str, object]:
    return {"store": name, "boxes": [{"kind": row.kind, "name": row.name, **row.numbers} for row in rows]}


def show(rows: Sequence[BoxRow]) -> None:
    table = box_table("reaped", "deleted")
    for row in rows:
        table.add_row(row.kind, row.name, *(f"{number:,}" for number in row.numbers.values()))
    console().print(table)
