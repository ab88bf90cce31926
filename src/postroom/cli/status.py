"""`postroom status`: the number of messages in each state, and of joins."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from postroom import JoinStatus, State
from postroom.cli.box_rows import BoxRow, by_box
from postroom.cli.option_sets import Boxes
from postroom.cli.options import box_table, console, counted, print_json
from postroom.cli.session import PAGE, AnyBox, AnyOutbox, ChosenStore, Session, Visited

COUNTED_JOINS = (JoinStatus.PENDING, JoinStatus.FAILED)
JOIN_COLUMNS = [f"{status} joins" for status in COUNTED_JOINS]
FAILED_JOINS = f"{JoinStatus.FAILED} joins"
StoreCounts: TypeAlias = tuple[str, list[BoxRow]]
"""The name of a store, and the counts of its boxes."""
Look: TypeAlias = Callable[[], list[Visited[StoreCounts]]]
MOST_SHOWN = 20
"""How many stores with trouble are shown without `--all`."""


def status(
    *,
    where: Boxes,
    everything: Annotated[
        bool, typer.Option("--all", help="Each of many stores. By default, totals and the stores with trouble.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show the number of messages in each state. Without names: all boxes of the room, or of the database."""

    async def count_boxes(store: ChosenStore) -> StoreCounts:
        return store.name, [await count(store, box) for box in await where.of(store)]

    def look() -> list[Visited[StoreCounts]]:
        session.failures.clear()
        return session.each(count_boxes)

    with where.open() as session:
        session.failures_are_shown = True  # they are rows
        if watch:
            keep_showing(session, look, every, everything=everything)
        elif where.json:
            print_json(as_json(session, look()))
        else:
            console().print(render(session, look(), everything=everything))


def keep_showing(session: Session, look: Look, every: float, *, everything: bool) -> None:
    """Shows the counts until Ctrl-C. The handler is its own: asyncio's can miss a signal that comes as a call ends."""
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        with Live(console=console(quiet=session.json), auto_refresh=False) as live:
            while not interrupted.is_set():
                found = look()
                if session.json:
                    print_json(as_json(session, found), one_line=True)
                live.update(render(session, found, everything=everything), refresh=True)
                interrupted.wait(every)
    finally:
        signal.signal(signal.SIGINT, before)
    session.failures.clear()  # what failed in a look is no failure of the command


async def count(store: ChosenStore, box: AnyBox) -> BoxRow:
    counts = await box.counts()
    numbers = {str(state): counts[state] for state in State}
    if box.box.kind == "outbox" and store.store.features.joins:
        numbers |= await count_joins(box)  # type: ignore[arg-type]
    return BoxRow(box.box.kind, box.name, numbers)


async def count_joins(box: AnyOutbox) -> dict[str, int]:
    """Returns the numbers of pending and of failed joins."""
    numbers, after = dict.fromkeys(JOIN_COLUMNS, 0), 0
    while True:
        page = await box.joins(statuses=COUNTED_JOINS, after=after, limit=PAGE)
        for join in page:
            numbers[f"{join.status} joins"] += 1
        if len(page) < PAGE:
            return numbers
        after = page[-1].number


def as_json(session: Session, found: Sequence[Visited[StoreCounts]]) -> dict[str, object]:
    if not session.is_many:
        [(_, (name, rows))] = found
        return {"store": name, "boxes": [_box_as_json(row) for row in rows]}
    return {
        "boxes": [_box_as_json(row) for row in by_box(rows for _, (_, rows) in found)],
        "stores": [{"store": key, "boxes": [_box_as_json(row) for row in rows]} for key, (_, rows) in found],
        "failed": [{"store": key, "error": text} for key, text in session.failures.items()],
    }


def _box_as_json(row: BoxRow) -> dict[str, object]:
    shown: dict[str, object] = {"kind": row.kind, "name": row.name}
    shown |= {str(state): row.numbers[str(state)] for state in State}
    joins = {str(status): row.numbers.get(f"{status} joins") for status in COUNTED_JOINS}
    return shown if None in joins.values() else shown | {"joins": joins}


def render(session: Session, found: Sequence[Visited[StoreCounts]], *, everything: bool) -> RenderableType:
    """Returns a table of boxes; for many stores, of all of them together and of those with trouble."""
    if not session.is_many:
        [(_, (_, alone))] = found
        return table([("", row) for row in alone], with_stores=False)
    stores = {str(key): rows for key, (_, rows) in found}
    totals = [("all", row) for row in by_box(stores.values())]
    trouble = sorted((key for key, rows in stores.items() if _dead(rows)), key=lambda key: -_dead(stores[key]))
    failed, shown = list(session.failures), list(stores) if everything else trouble
    most = len(failed) + len(shown) if everything else MOST_SHOWN
    rows = [(key, BoxRow("failed", session.failures[key], {})) for key in failed[:most]]
    rows += [(key, row) for key in shown[: max(most - len(failed), 0)] for row in stores[key]]
    left = len(failed) + len(shown) - most
    known = counted(len(stores) + len(failed), "store")
    return Group(
        f"{known}, {len(failed)} failed, {len(trouble)} with dead letters or failed joins",
        table([*totals, *rows], with_stores=True),
        *([f"and {counted(left, 'more store')}: --all"] if left > 0 else []),
    )


def _dead(rows: Sequence[BoxRow]) -> int:
    return sum(row.numbers[State.DEAD] + row.numbers.get(FAILED_JOINS, 0) for row in rows)


def table(rows: Sequence[tuple[str, BoxRow]], *, with_stores: bool) -> RenderableType:
    joins = JOIN_COLUMNS if any(FAILED_JOINS in row.numbers for _, row in rows) else []
    columns = [*map(str, State), *joins]
    made = box_table(*columns, with_stores=with_stores)
    for store, row in rows:
        is_red = not row.numbers or row.numbers[State.DEAD] > 0
        shown = [f"{row.numbers[name]:,}" if name in row.numbers else "" for name in columns]
        made.add_row(*([store] if with_stores else []), row.kind, row.name, *shown, style="red" if is_red else None)
    return made
