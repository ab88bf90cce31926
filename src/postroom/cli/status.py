"""`postroom status`: the number of messages in each state, and of joins."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.live import Live
from rich.table import Table

from postroom import JoinStatus, Outbox, State
from postroom._kernel.queries import Counts
from postroom.cli.option_sets import Boxes
from postroom.cli.options import Json, box_table, console, print_json
from postroom.cli.session import PAGE, AnyBox, Session

COUNTED_JOINS = (JoinStatus.PENDING, JoinStatus.FAILED)


class BoxCounts(NamedTuple):
    """The number of messages of a box in each state, and of an outbox its pending and failed joins."""

    kind: str
    name: str
    counts: Counts
    joins: Mapping[str, int] | None


def status(
    *,
    where: Boxes,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    json: Json = False,
) -> None:
    """Show the number of messages in each state. Without names: all boxes of the room, or of the database."""
    with where.open() as session:
        boxes = where.of(session)
        if watch:
            keep_showing(session, boxes, every, json=json)
        elif json:
            print_json(as_json(session, count(session, boxes)))
        else:
            console().print(table(count(session, boxes)))


def keep_showing(session: Session, boxes: Sequence[AnyBox], every: float, *, json: bool) -> None:
    """Shows the counts until Ctrl-C. The handler is its own: asyncio's can miss a signal that comes as a call ends."""
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        with Live(console=console(quiet=json), auto_refresh=False) as live:
            while not interrupted.is_set():
                counted = count(session, boxes)
                if json:
                    print_json(as_json(session, counted), one_line=True)
                live.update(table(counted), refresh=True)
                interrupted.wait(every)
    finally:
        signal.signal(signal.SIGINT, before)


def count(session: Session, boxes: Sequence[AnyBox]) -> list[BoxCounts]:
    return [
        BoxCounts(each.box.kind, each.name, session.wait(each.counts()), count_joins(session, each)) for each in boxes
    ]


def count_joins(session: Session, box: AnyBox) -> dict[str, int] | None:
    """Returns the numbers of pending and of failed joins. None: an inbox, or a store that has no joins."""
    if not isinstance(box, Outbox) or not session.room.features.joins:
        return None
    counts, after = dict.fromkeys(map(str, COUNTED_JOINS), 0), 0
    while True:
        page = session.wait(box.joins(statuses=COUNTED_JOINS, after=after, limit=PAGE))
        for join in page:
            counts[join.status] += 1
        if len(page) < PAGE:
            return counts
        after = page[-1].number


def as_json(session: Session, counted: Sequence[BoxCounts]) -> dict[str, object]:
    return {"store": session.room.store.name, "boxes": [_box_as_json(each) for each in counted]}


def _box_as_json(each: BoxCounts) -> dict[str, object]:
    shown: dict[str, object] = {"kind": each.kind, "name": each.name}
    shown |= {str(state): number for state, number in each.counts.items()}
    return shown if each.joins is None else shown | {"joins": each.joins}


def table(counted: Sequence[BoxCounts]) -> Table:
    has_joins = any(each.joins is not None for each in counted)
    made = box_table(*State, *(f"{status} joins" for status in COUNTED_JOINS if has_joins))
    for kind, name, counts, joins in counted:
        numbers = [counts[state] for state in State] + list((joins or {}).values())
        style = "red" if counts[State.DEAD] else None
        made.add_row(kind, name, *(f"{number:,}" for number in numbers), style=style)
    return made
