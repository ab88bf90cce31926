"""Worker processes on one database, and what must be true of what they did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from tools.servers.base import ServerFailed, wait_for

from postroom import NewMessage, State
from postroom.sync import Postroom
from tests.postgres_chaos.worker import Options, open_box

ROOT = Path(__file__).parents[2]
CHAOS = int(os.environ.get("POSTROOM_CHAOS", "1"))
"""How much longer than usual the tests run."""
PATIENCE = 60.0
"""Seconds in which at least something must happen. How long all of it takes is up to the machine."""
LONGEST = 600.0
EFFECTS = "CREATE TABLE effects (position bigserial PRIMARY KEY, box text, line text, number integer)"

HOLDERS = """
SELECT group_id FROM postroom_queue WHERE group_id IS NOT NULL AND state = 2 AND lease_until > statement_timestamp()
 GROUP BY box, group_id HAVING count(DISTINCT owner) > 1
"""


class Claimed(NamedTuple):
    """A line of a worker's log."""

    box: str
    id: int
    fence: int
    owner: str
    until: float


def prepare(url: str) -> None:
    """Our tables, and one for effects."""
    with Postroom(url) as room:
        room.migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(EFFECTS)


class WorkerProcesses:
    """Processes that work, can be killed, and are replaced."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._processes: list[subprocess.Popen[str]] = []
        self._started = 0

    def start(self, count: int = 1) -> None:
        for _ in range(count):
            self._started += 1
            log = str(self._folder / f"claims-{self._started}.log")
            options = replace(self._options, log=log, seed=self._options.seed * 1000 + self._started)
            command = [sys.executable, "-m", "tests.postgres_chaos.worker", options.dump()]
            errors = (self._folder / f"errors-{self._started}.log").open("w")
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=errors, text=True)
            errors.close()
            self._processes.append(process)
        for process in self._processes[-count:]:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", self.errors()

    @property
    def processes(self) -> Sequence[subprocess.Popen[str]]:
        return self._processes

    def kill(self, process: subprocess.Popen[str]) -> None:
        """As a power cut does."""
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self._processes.remove(process)

    def stop(self) -> None:
        """In order; each must end by itself, without an error."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            assert process.wait(PATIENCE) == 0, self.errors()
            assert process.stdout is not None
            process.stdout.close()
        self._processes.clear()

    def close(self) -> None:
        for process in list(self._processes):
            self.kill(process)

    def errors(self) -> str:
        texts = (path.read_text("utf-8")[-2000:] for path in sorted(self._folder.glob("errors-*.log")))
        return "\n".join(text for text in texts if text)

    def claims(self, box: str) -> list[Claimed]:
        found: list[Claimed] = []
        for path in self._folder.glob("claims-*.log"):
            for line in path.read_text("utf-8").splitlines(keepends=True):
                if line.endswith("\n"):  # a killed process may leave half a line
                    found.append(Claimed(*json.loads(line)))
        return [claim for claim in found if claim.box == box]


@contextmanager
def workers_on(url: str, folder: Path, processes: int, **options: Any) -> Iterator[WorkerProcesses]:
    workers = WorkerProcesses(Options(url, "", **options), folder)
    try:
        workers.start(processes)
        yield workers
    finally:
        workers.close()


def message(line: Any, number: int) -> NewMessage:
    return NewMessage("t", number, source="s", message_id=f"{line}-{number}", group=str(line))


def progress(url: str) -> tuple[int, int]:
    """How many are left to do, and how many are done."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM postroom_queue WHERE state IN (1, 2)), (SELECT count(*) FROM postroom_ledger)"
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])


def let_finish(url: str, workers: WorkerProcesses) -> None:
    """Until nothing waits and nothing is claimed. What is stuck makes this fail: for long, nothing is completed."""
    latest, changed = (0, 0), time.monotonic()

    def is_finished() -> bool:
        nonlocal latest, changed
        if any(process.poll() is not None for process in workers.processes):
            raise AssertionError(f"a worker has ended\n{workers.errors()}")
        try:
            left, completed = progress(url)
        except psycopg.OperationalError:
            return False  # the server is not back yet
        if (left, completed) != latest:
            latest, changed = (left, completed), time.monotonic()
        elif time.monotonic() > changed + PATIENCE:
            raise ServerFailed(f"{left} are left, and nothing has happened for {PATIENCE:g} seconds")
        return left == 0

    try:
        wait_for(is_finished, "all to be handled", seconds=LONGEST)
    except ServerFailed as failure:
        raise AssertionError(f"{failure}\n{leftovers(url)}\n{workers.errors()}") from None


def leftovers(url: str) -> str:
    """Returns what is still in the queue, for the message of a failure."""
    times = "available_at, lease_until, statement_timestamp() AS now"
    columns = f"box, group_id, id, state, {times}, owner, fence, attempt, last_error"
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            f"SELECT {columns} FROM postroom_queue ORDER BY box, group_id, id LIMIT 30"
        ).fetchall()
        nudges = connection.execute("SELECT * FROM postroom_nudge LIMIT 30").fetchall()
    return "\n".join(map(str, [*rows, *nudges]))


class Effects(NamedTuple):
    """What handlers wrote, in the order in which they did."""

    lines: dict[str, dict[str, list[int]]]

    def check_exact(self, box: str, everything: dict[str, list[int]]) -> None:
        """Each once, each line in order."""
        found = self.lines.get(box, {})
        wrong = {line: (found.get(line), everything.get(line)) for line in {*found, *everything}}
        wrong = {line: pair for line, pair in wrong.items() if pair[0] != pair[1]}
        assert not wrong, f"effects of lines, and what they should be: {wrong}"

    def check_order(self, box: str, everything: dict[str, list[int]]) -> int:
        """Each at least once; a repetition is allowed, overtaking is not. Returns the number of repetitions."""
        found = self.lines.get(box, {})
        assert {line: sorted(set(numbers)) for line, numbers in found.items()} == everything
        for numbers in found.values():
            highest = -1
            for number in numbers:
                assert number <= highest + 1, numbers
                highest = max(highest, number)
        return sum(map(len, found.values())) - sum(map(len, everything.values()))

    def check_once(self, box: str, everything: dict[str, list[int]]) -> None:
        """Each once, in any order."""
        found = self.lines.get(box, {})
        assert {line: sorted(numbers) for line, numbers in found.items()} == everything


def effects(url: str) -> Effects:
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    with psycopg.connect(url, autocommit=True) as connection:
        for box, line, number in connection.execute("SELECT box, line, number FROM effects ORDER BY position"):
            lines[box][line].append(number)
    return Effects({box: dict(found) for box, found in lines.items()})


def check_completions(url: str, expected: dict[str, int]) -> None:
    """At most one completion of each key, and nothing lost: everything is done, and nothing else is there."""
    with Postroom(url) as room:
        for name, count in expected.items():
            box = open_box(room, Options(url, ""), name)
            assert box.counts() == dict.fromkeys(State, 0) | {State.DONE: count}, name
    with psycopg.connect(url, autocommit=True) as connection:
        left = connection.execute("SELECT count(*) FROM postroom_queue").fetchone()
        assert left == (0,)
        endings = connection.execute("SELECT DISTINCT ending FROM postroom_ledger").fetchall()
        assert endings in ([], [("handled",)])


def check_claims(claims: list[Claimed]) -> None:
    """No claim was given to two: every claim of a message has a fence of its own."""
    twice = [proof for proof, count in Counter((claim.id, claim.fence) for claim in claims).items() if count > 1]
    assert not twice
