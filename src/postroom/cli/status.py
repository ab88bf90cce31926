"""`postroom status`: the number of messages in each state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer
from rich.live import Live
from rich.table import Table

from postroom import State
from postroom._kernel.queries import Counts
from postroom.cli.option_sets import Boxes
from postroom.cli.options import Json, box_table, console, print_json
from postroom.cli.session import AnyBox, Session


class BoxCounts(NamedTuple):
    """The number of messages of a box in each state."""

    kind: str
    name: str
    counts: Counts


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
    return [BoxCounts(each.box.kind, each.name, session.wait(each.counts())) for each in boxes]


def as_json(session: Session, counted: Sequence[BoxCounts]) -> dict[str, object]:
    boxes = [{"kind": each.kind, "name": each.name, **each.counts} for each in counted]
    return {"store": session.room.store.name, "boxes": boxes}


def table(counted: Sequence[BoxCounts]) -> Table:
    made = box_table(*State)
    for kind, name, counts in counted:
        made.add_row(
            kind, name, *(f"{counts[state]:,}" for state in State), style="red" if counts[State.DEAD] else None
        )
    return made
