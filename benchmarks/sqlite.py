"""`make bench`: Postroom on SQLite beside a raw sqlite3 loop on the same tables, in the same run.

    python -m benchmarks.sqlite [--quick] [--repeat ROUNDS] [--json FILE] [--directory DIR]

docs/reference/benchmarks.md says what is measured, and how to read it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress

import postroom.sync
from benchmarks import raw_sqlite, table
from benchmarks.rounds import Case, Rounds, seconds
from benchmarks.subjects import AsyncFace, Raw, Subject, SyncFace
from benchmarks.table import LIMIT, Aim, Section
from benchmarks.workload import PAYLOAD_BYTES, Item, items

SYNC, ASYNC, UNORDERED, FIFO = "sync", "async", "unordered", "fifo"
CONTENDERS: dict[str, Callable[[Path], Subject]] = {LIMIT: Raw, SYNC: SyncFace, ASYNC: AsyncFace}

BULK = 1_000
BUILD = 5_000
TASKS = 100
BATCH = 50
STANDING = 10_000
SLICE = 10 * BATCH

AIM_RATIO, AIM_RATE, AIM_FACTOR = 0.7, 30_000, 1.3


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds, runs per round, and messages per run by case."""

    rounds: Rounds
    one_by_one: int
    concurrent: int
    bulk: int
    drains: dict[int, int]
    levels: tuple[int, ...]
    steady: Rounds
    groups: tuple[int, ...] = (1, 100, 10_000)
    ordered: int = 1_000


FULL = Plan(
    Rounds(count=5, runs=5),
    200,
    500,
    5_000,
    {1: 100, 50: 1_000, 500: 2_000},
    (10**3, 10**5, 10**6),
    Rounds(5, 10),
)
QUICK = Plan(
    Rounds(count=3, runs=2),
    100,
    300,
    3_000,
    {1: 100, 50: 1_000, 500: 2_000},
    (10**3, 10**4, 10**5),
    Rounds(3, 4),
)

stderr = Console(stderr=True)


def main() -> None:
    options = _options()
    plan = _plan(options)
    started = time.perf_counter()
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folder = Path(name)
        commits = [_commit_milliseconds(folder)]
        _check_same_work(folder)
        sections = [*_basic(folder, plan), *_backlogs(folder, plan), _fifo(folder, plan)]
        commits.append(_commit_milliseconds(folder))
    about = {
        **table.versions(),
        "journal": "WAL, synchronous=FULL",
        "payload": f"{PAYLOAD_BYTES} bytes of JSON",
        "rounds": plan.rounds.count,
        "one durable commit": f"{commits[0]:.2f} ms before, {commits[1]:.2f} ms after",
        "took": f"{time.perf_counter() - started:.0f} s",
    }
    aims = _aims(sections)
    table.show(sections, aims, about)
    if options.json is not None:
        options.json.write_text(json.dumps(table.as_json(sections, aims, about), indent=2) + "\n", "utf-8")


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    if options.repeat is None:
        return plan
    rounds, steady = (replace(each, count=options.repeat) for each in (plan.rounds, plan.steady))
    return replace(plan, rounds=rounds, steady=steady)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sqlite", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller backlogs and fewer rounds: half a minute")
    parser.add_argument("--repeat", type=int, metavar="ROUNDS", help=f"rounds per case (default {FULL.rounds.count})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here too")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(".build/bench"),
        help="where the databases go: on a disk, since in memory a durable commit costs nothing (default %(default)s)",
    )
    return parser.parse_args()


# -- before anything is measured -----------------------------------------------------------------------------------


def _make(path: Path) -> Path:
    with postroom.sync.Postroom(f"sqlite:///{path}") as room:
        room.migrate()
    return path


def _commit_milliseconds(folder: Path) -> float:
    """What one durable commit of one page costs here: it decides every rate at small batches.

    It is measured twice: if the results differ much, something else was using the disk.
    """
    connection = sqlite3.connect(_make(folder / "commit.db"), isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    write = partial(connection.execute, "UPDATE postroom_sequence SET value = value + 1")
    times = [seconds(write) for _ in range(50)]
    connection.close()
    return 1000 * median(times)


def _check_same_work(folder: Path) -> None:
    """The raw loop is a limit only while it leaves the same rows as Postroom."""
    sent = items(6)
    left = []
    for name, contender in CONTENDERS.items():
        path = _make(folder / f"same-{name}.db")
        subject = contender(path)
        subject.enqueue_bulk(sent, len(sent))
        subject.drain(4, 2)
        subject.close()
        left.append(raw_sqlite.contents(path))
    if any(rows != left[0] for rows in left):
        raise AssertionError("the raw loop and Postroom leave different rows: adapt benchmarks/raw_sqlite.py")


def _open(path: Path, contender: Callable[[Path], Subject]) -> Subject:
    """Ready to run: schema checked, statements prepared."""
    subject = contender(path)
    _send(subject, BATCH)
    subject.drain(BATCH, BATCH)
    return subject


def _send(subject: Subject, count: int) -> None:
    subject.enqueue_bulk(items(count), BUILD)


def _sending(count: int, work: Callable[[list[Item]], None]) -> tuple[float]:
    """A run of enqueue. The messages themselves are made before the clock starts."""
    sent = items(count)
    return (seconds(lambda: work(sent)),)


def _draining(subject: Subject, count: int, batch: int) -> tuple[float]:
    """A run of claim + ack; as many messages as it takes are sent before the clock starts."""
    _send(subject, count)
    return (seconds(lambda: subject.drain(count, batch)),)


def _exchanging(subject: Subject) -> tuple[float, float]:
    """A run of claim + ack, then of enqueue: the backlog stays constant, since handled messages are sent again."""
    drained = seconds(lambda: subject.drain(SLICE, BATCH))
    [sent] = _sending(SLICE, partial(subject.enqueue_bulk, size=SLICE))
    return drained, sent


def _run(name: str, rounds: Rounds, messages: int, contenders: Mapping[str, Callable[[], tuple[float]]]) -> Case:
    stderr.print(f"  {name}")
    return Case(name, {contender: rates for contender, [rates] in rounds.take(messages, contenders).items()})


# -- enqueue, claim and ack ----------------------------------------------------------------------------------------


def _basic(folder: Path, plan: Plan) -> list[Section]:
    subjects = {name: _open(_make(folder / f"{name}.db"), contender) for name, contender in CONTENDERS.items()}
    each = {name: partial(_sending, plan.one_by_one, subject.enqueue_each) for name, subject in subjects.items()}
    bulk = {
        name: partial(_sending, plan.bulk, partial(subject.enqueue_bulk, size=BULK))
        for name, subject in subjects.items()
    }
    enqueue = [
        _run("one by one", plan.rounds, plan.one_by_one, each),
        _concurrent(subjects, plan),
        _run(f"in bulk, {BULK:,} at once", plan.rounds, plan.bulk, bulk),
    ]
    claim = []
    for batch, count in plan.drains.items():
        drains = {name: partial(_draining, subject, count, batch) for name, subject in subjects.items()}
        claim.append(_run(f"batches of {batch}", plan.rounds, count, drains))
    for subject in subjects.values():
        subject.close()
    names = tuple(CONTENDERS)
    return [Section("enqueue", enqueue, names), Section("claim + ack", claim, names)]


def _concurrent(subjects: dict[str, Subject], plan: Plan) -> Case:
    """Only async code has tasks. The limit remains the raw loop, one by one: it has one connection."""
    face = subjects[ASYNC]
    assert isinstance(face, AsyncFace)
    contenders = {
        LIMIT: partial(_sending, plan.concurrent, subjects[LIMIT].enqueue_each),
        ASYNC: partial(_sending, plan.concurrent, partial(face.enqueue_concurrently, tasks=TASKS)),
    }
    return _run(f"from {TASKS} tasks (raw: one by one)", plan.rounds, plan.concurrent, contenders)


# -- backlogs ------------------------------------------------------------------------------------------------------


def _backlogs(folder: Path, plan: Plan) -> list[Section]:
    """Claim + ack, and enqueue, while many wait. The levels alternate too: they are compared with each other."""
    files = _build(folder, plan.levels)
    stderr.print(f"  {', '.join(f'{level:,}' for level in plan.levels)} waiting")
    subjects = {
        (level, name): _open(_copy(files[level], name), contender)
        for level in plan.levels
        for name, contender in CONTENDERS.items()
    }
    rates = plan.steady.take(SLICE, {key: partial(_exchanging, subject) for key, subject in subjects.items()})
    for subject in subjects.values():
        subject.close()
    claim, enqueue = (
        [Case(f"{level:,} waiting", {name: rates[level, name][clock] for name in CONTENDERS}) for level in plan.levels]
        for clock in (0, 1)
    )
    names = tuple(CONTENDERS)
    return [
        Section(f"claim + ack in batches of {BATCH}, by backlog", claim, names),
        Section(f"enqueue in bulk, {SLICE} at once, by backlog", enqueue, names),
    ]


def _build(folder: Path, levels: tuple[int, ...]) -> dict[int, Path]:
    """One database that grows, and a copy of it at each level."""
    growing = _make(folder / "growing.db")
    files: dict[int, Path] = {}
    with Progress(console=stderr, transient=True) as progress:
        task = progress.add_task("  building the backlogs", total=levels[-1])
        there = 0
        for level in levels:
            subject = SyncFace(growing)
            while there < level:
                count = min(BUILD, level - there)
                _send(subject, count)
                there += count
                progress.update(task, completed=there)
            subject.close()  # the last connection to close moves everything from the log into the file
            files[level] = growing if level == levels[-1] else _copy(growing, str(level))
    return files


def _copy(path: Path, name: str) -> Path:
    return Path(shutil.copyfile(path, path.with_name(f"{path.stem}-{name}.db")))


# -- FIFO ----------------------------------------------------------------------------------------------------------


def _fifo(folder: Path, plan: Plan) -> Section:
    """What order costs: the same drain from boxes with few and with many groups, beside one without order."""
    stderr.print("  FIFO")
    subjects = {groups: SyncFace(_make(folder / f"groups-{groups}.db"), groups=groups) for groups in (0, *plan.groups)}
    for subject in subjects.values():
        _send(subject, STANDING)
    contenders = {groups: partial(_draining, subject, plan.ordered, BATCH) for groups, subject in subjects.items()}
    rates = {groups: rates for groups, [rates] in plan.rounds.take(plan.ordered, contenders).items()}
    for subject in subjects.values():
        subject.close()
    cases = [
        Case(f"{groups:,} group{'s' if groups > 1 else ''}", {UNORDERED: rates[0], FIFO: rates[groups]})
        for groups in plan.groups
    ]
    return Section(f"order: claim + ack in batches of {BATCH}", cases, (UNORDERED, FIFO), limit=UNORDERED)


# -- what the project set out to reach -----------------------------------------------------------------------------


def _aims(sections: list[Section]) -> list[Aim]:
    _, claim, by_backlog, *_ = sections
    aims = []
    for name in (SYNC, ASYNC):
        for case in claim.cases[1:]:
            ratio = median(case.ratios(name, LIMIT))
            aims.append(Aim(f"{name}, {case.name}: at least {AIM_RATIO:.0%} of raw", ratio, ratio >= AIM_RATIO))
        best = max(case.rate(name) or 0 for case in claim.cases)
        aims.append(Aim(f"{name}: more than {AIM_RATE:,} claim + ack per second", best, best > AIM_RATE))
    for name in CONTENDERS:
        rates = [case.rate(name) or 0 for case in by_backlog.cases]
        factor = max(rates) / min(rates)
        aims.append(Aim(f"{name}: dearest backlog / cheapest at most {AIM_FACTOR}", factor, factor <= AIM_FACTOR))
    return aims


if __name__ == "__main__":
    main()
