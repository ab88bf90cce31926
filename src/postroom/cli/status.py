"""`postroom status`: how many messages stand in each state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from postroom import State
from postroom.cli.option_sets import Boxes
from postroom.cli.options import Json, box_table, console, print_json
from postroom.cli.place import AnyBox, Place


def status(
    *,
    where: Boxes,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    json: Json = False,
) -> None:
    """Show how many messages stand in each state. Without names: all boxes of the room, or of the database."""
    with where.open() as place:
        boxes = where.of(place)
        if watch:
            keep_showing(place, boxes, every, json=json)
        elif json:
            print_json(count(place, boxes))
        else:
            console().print(table(count(place, boxes)))


def keep_showing(place: Place, boxes: Sequence[AnyBox], every: float, *, json: bool) -> None:
    """Until Ctrl-C. It is noted here, since asyncio's own handler can miss one that comes as a call ends."""
    told = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: told.set())
    try:
        with Live(console=console(quiet=json), auto_refresh=False) as live:
            while not told.is_set():
                counted = count(place, boxes)
                if json:
                    print_json(counted, one_line=True)
                live.update(table(counted), refresh=True)
                told.wait(every)
    finally:
        signal.signal(signal.SIGINT, before)


def count(place: Place, boxes: Sequence[AnyBox]) -> dict[str, Any]:
    return {
        "store": place.room.store.name,
        "boxes": [{"kind": face.box.kind, "name": face.name, **place.wait(face.counts())} for face in boxes],
    }


def table(counted: dict[str, Any]) -> Table:
    made = box_table(*State)
    for row in counted["boxes"]:
        made.add_row(
            row["kind"],
            row["name"],
            *(f"{row[state]:,}" for state in State),
            style="red" if row[State.DEAD] else None,
        )
    return made
