"""kill -9 at random points: workers die, sleep through their leases and come back, and the promises hold."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from postroom import NewMessage, State
from postroom.sync import Postroom
from tests.runtime.zygote import LEASE, boxes

RESTARTS = 25
"""In each run of the tests. `make chaos` sets POSTROOM_RESTARTS=200."""
WORKERS = 2
GROUPS = 8
MOST_SECONDS = 120.0

Ledger = dict[str, list[int]]


class Workers:
    """Processes that can be killed, and are replaced."""

    def __init__(self, zygote: subprocess.Popen[str]) -> None:
        self._zygote = zygote
        self.alive: list[int] = []
        self.started = 0

    def start(self) -> None:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self.started += 1
        self._zygote.stdin.write(f"{self.started}\n")
        self._zygote.stdin.flush()
        self.alive.append(int(self._zygote.stdout.readline()))

    def kill(self, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        self.alive.remove(worker)


@contextmanager
def workers_on(path: str) -> Iterator[Workers]:
    command = [sys.executable, "-m", "tests.runtime.zygote", path]
    zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers = Workers(zygote)
    try:
        yield workers
    finally:
        for worker in workers.alive:
            os.kill(worker, signal.SIGKILL)
        zygote.kill()
        zygote.communicate()


def ledger(path: str, table: str) -> Ledger:
    lines: Ledger = defaultdict(list)
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        for line, number in connection.execute(f"SELECT line, number FROM {table} ORDER BY position"):
            lines[line].append(number)
    return lines


def unfinished(box: Any) -> int:
    counts = box.counts()
    return int(counts[State.WAITING] + counts[State.CLAIMED])


class Feed:
    """Messages for every group, numbered."""

    def __init__(self, *boxes: Any) -> None:
        self.boxes = boxes
        self.length = 0

    def keep_full(self, count: int = 20) -> None:
        if min(map(unfinished, self.boxes)) < count * GROUPS:
            for box in self.boxes:
                box.enqueue_many(
                    [
                        NewMessage("t", number, source="s", message_id=f"{group}-{number}", group=str(group))
                        for number in range(self.length, self.length + count)
                        for group in range(GROUPS)
                    ]
                )
            self.length += count


def harass(workers: Workers, feed: Feed, restarts: int) -> None:
    chance = random.Random(restarts)
    for _ in range(WORKERS):
        workers.start()
    for _ in range(restarts):
        feed.keep_full()
        victim = chance.choice(workers.alive)
        if chance.random() < 0.1:
            # It sleeps through its leases, others take its work, and it comes back as a zombie.
            os.kill(victim, signal.SIGSTOP)
            time.sleep(LEASE * 1.5)
            os.kill(victim, signal.SIGCONT)
        time.sleep(chance.uniform(0, 0.3))  # the random point
        workers.kill(victim)
        workers.start()


def let_finish(*boxes: Any) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while any(map(unfinished, boxes)):
        assert time.monotonic() < deadline, {box.name: box.counts() for box in boxes}
        time.sleep(0.05)


def check_in_order(numbers: list[int]) -> None:
    """Again is allowed; ahead is not."""
    highest = -1
    for number in numbers:
        assert number <= highest + 1, numbers
        highest = max(highest, number)


@pytest.mark.req("IBX-072", "OBX-047", "IBX-077", "OBX-052", "RHI-167", "C-46", "IBX-SCP-01", "C-01")
def test_promises_hold_when_workers_are_killed(tmp_path: Path) -> None:
    restarts = int(os.environ.get("POSTROOM_RESTARTS", RESTARTS))
    path = f"{tmp_path}/room.db"
    with Postroom(f"sqlite:///{path}") as room:
        room.migrate()
        with closing(sqlite3.connect(path)) as connection:
            for table in ("exact", "plain", "sent"):
                connection.execute(f"CREATE TABLE {table} (position INTEGER PRIMARY KEY, line TEXT, number INTEGER)")
        exact, plain, sent = boxes(room)
        feed = Feed(exact, plain)
        with workers_on(path) as workers:
            harass(workers, feed, restarts)
            let_finish(exact, plain, sent)
        everything = {str(group): list(range(feed.length)) for group in range(GROUPS)}
        # 1: one completion for each key. 4: nothing is lost; all that was accepted is done, and nothing else is.
        for box in (exact, plain, sent):
            assert box.counts() == dict.fromkeys(State, 0) | {State.DONE: GROUPS * feed.length}, box.name
    # 3: effects of transactional handlers are there exactly once. 5: in order, so no zombie finished newer work.
    assert ledger(path, "exact") == everything
    # 2: the others were called at least once. 5: none before its predecessor had succeeded.
    repeated = 0
    for found in (ledger(path, "plain"), ledger(path, "sent")):
        assert {line: sorted(set(numbers)) for line, numbers in found.items()} == everything
        for numbers in found.values():
            check_in_order(numbers)
            repeated += len(numbers) - feed.length
    assert repeated > 0  # otherwise nothing was interrupted, and this proves nothing
    print(f"{restarts} restarts, {3 * GROUPS * feed.length} messages, {repeated} repeated effects")  # noqa: T201
