"""Worker and writer processes on one box, and checks of what they have done."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import redis
from tools.servers.base import ServerFailed, wait_for

from tests.redis_chaos.process import BOX, LINES, Options, message_id
from tests.redis_invariants import Snapshot, complaints, foreign_keys

ROOT = Path(__file__).parents[2]
CHAOS = int(os.environ.get("POSTROOM_CHAOS", "1"))
"""A factor for the duration of the tests."""
PATIENCE = 60.0
"""Seconds without any progress after which a test fails."""
LONGEST = 600.0
BOX_KEY = f"inbox:{BOX}"


class Claimed(NamedTuple):
    id: int
    fence: int
    owner: str
    until: float
    message_id: str


class Acked(NamedTuple):
    message_id: str
    when: float


def new_prefix() -> str:
    return f"chaos{secrets.token_hex(4)}"


class Workload:
    """Worker and writer processes, which a test starts, stops and kills."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options, self._folder = options, folder
        self.workers: list[subprocess.Popen[str]] = []
        self.writers: list[subprocess.Popen[str]] = []
        self._started = 0
        self._read: dict[Path, tuple[int, list[list[Any]]]] = {}

    def start(self, *, workers: int = 0, writers: int = 0) -> None:
        new = [(self.workers, "workers")] * workers + [(self.writers, "writer")] * writers
        begun = []
        for processes, role in new:
            self._started += 1
            name = f"{role[0]}{self._started}"
            log = str(self._folder / f"{role}-{name}.log")
            options = replace(self.options, log=log, name=name, role=role)
            command = [sys.executable, "-m", "tests.redis_chaos.process", options.dump()]
            with (self._folder / f"errors-{name}.txt").open("w") as errors:
                pipe = subprocess.PIPE
                process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=errors, text=True)
            processes.append(process)
            begun.append(process)
        for process in begun:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", self.errors()

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kills a process with SIGKILL."""
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for processes in (self.workers, self.writers):
            if process in processes:
                processes.remove(process)

    def stop(self, processes: list[subprocess.Popen[str]]) -> None:
        """Asks processes to end, and checks that they end without an error."""
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(PATIENCE) == 0, self.errors()
            assert process.stdout is not None
            process.stdout.close()
        processes.clear()

    def close(self) -> None:
        for process in [*self.workers, *self.writers]:
            self.kill(process)

    def errors(self) -> str:
        texts = (path.read_text("utf-8")[-2000:] for path in sorted(self._folder.glob("errors-*.txt")))
        return "\n".join(text for text in texts if text)

    def _lines(self, role: str, kind: str) -> Iterator[tuple[str, list[Any]]]:
        for path in self._folder.glob(f"{role}-*.log"):
            read, lines = self._read.get(path, (0, []))
            with path.open("rb") as log:  # from where the last call has stopped
                log.seek(read)
                new = log.read()
            new = new[: new.rfind(b"\n") + 1]  # a killed process may leave half a line
            lines += [json.loads(line) for line in new.splitlines()]
            self._read[path] = read + len(new), lines
            yield from ((path.stem.partition("-")[2], found[1:]) for found in lines if found[0] == kind)

    def claims(self) -> list[Claimed]:
        return [Claimed(*found) for _, found in self._lines("workers", "claim")]

    def handled(self) -> Counter[str]:
        """Returns the number of handler calls by message id."""
        return Counter(name for name, _ in self.calls())

    def calls(self) -> list[tuple[str, float]]:
        """Returns message id and time of each handler call."""
        return [(name, when) for _, (name, when) in self._lines("workers", "handle")]

    def acked(self) -> list[Acked]:
        """Returns the messages whose put has returned, with the time."""
        return [
            Acked(message_id(writer, number), when)
            for writer, (first, last, when) in self._lines("writer", "ack")
            for number in range(first, last + 1)
        ]

    def await_more(self, count: int, what: Callable[[], int] | None = None) -> None:
        """Waits until `count` more messages are acknowledged, or counted by `what`."""
        count_now = what or (lambda: len(self.acked()))
        goal = count_now() + count
        try:
            wait_for(lambda: count_now() >= goal, f"{count} more", seconds=PATIENCE)
        except ServerFailed as failure:
            raise AssertionError(f"{failure}\n{self.errors()}") from None

    def let_finish(self, client: Callable[[], redis.Redis]) -> Snapshot:
        """Waits until no message is waiting or claimed. Fails if no message completes for `PATIENCE` seconds."""
        latest, changed = -1, time.monotonic()
        box: Snapshot | None = None

        def is_finished() -> bool:
            nonlocal latest, changed, box
            if any(process.poll() is not None for process in self.workers):
                raise AssertionError(f"a worker has ended\n{self.errors()}")
            with client() as connection:
                box = Snapshot.take(connection, self.options.prefix, BOX_KEY)
            left, done = len(box.ids_in("w")) + len(box.ids_in("c")), len(box.ids_in("d"))
            if done != latest:
                latest, changed = done, time.monotonic()
            elif time.monotonic() > changed + PATIENCE:
                raise ServerFailed(f"{left} are left, and nothing has happened for {PATIENCE:g} seconds")
            return left == 0

        try:
            wait_for(is_finished, "all to be handled", seconds=LONGEST)
        except ServerFailed as failure:
            raise AssertionError(f"{failure}\n{self.errors()}") from None
        assert box is not None
        return box


@contextmanager
def workload_on(url: str, folder: Path, *, workers: int = 0, writers: int = 0, **options: Any) -> Iterator[Workload]:
    workload = Workload(Options(url, new_prefix(), **options), folder)
    try:
        workload.start(workers=workers, writers=writers)
        yield workload
    finally:
        workload.close()


def lost(workload: Workload, box: Snapshot) -> list[Acked]:
    """Returns acknowledged messages that the box does not have."""
    there = {content.message_id for content in box.contents.values()}
    return [acked for acked in workload.acked() if acked.message_id not in there]


def check_whole(client: redis.Redis, workload: Workload) -> None:
    wrong = complaints(client, workload.options.prefix, BOX_KEY)
    foreign = foreign_keys(client, workload.options.prefix, BOX_KEY)
    assert not wrong, wrong
    assert not foreign, foreign


def check_handled(workload: Workload, box: Snapshot) -> int:
    """Checks that every message is done and was handled. Returns the number of repeated handler calls."""
    assert box.ids_in("d") == set(box.contents)
    assert {box.progress(id_).ending for id_ in box.contents} <= {"handled"}
    handled = workload.handled()
    assert {content.message_id for content in box.contents.values()} <= set(handled)
    return sum(handled.values()) - len(handled)


def check_order(calls: Sequence[tuple[str, float]]) -> None:
    """Checks the order in each group: a message may be repeated, but never overtakes the one before it."""
    highest: dict[tuple[str, int], int] = {}
    for name, _ in sorted(calls, key=lambda call: call[1]):
        writer, _, text = name.rpartition("-")
        place, line = divmod(int(text), LINES)
        reached = highest.get((writer, line), -1)
        assert place <= reached + 1, (writer, line, place, reached)
        highest[writer, line] = max(place, reached)


def given_twice(claims: Sequence[Claimed]) -> list[tuple[int, int]]:
    """Returns (id, fence) pairs that were given out twice."""
    return [proof for proof, count in Counter((claim.id, claim.fence) for claim in claims).items() if count > 1]


def mistakable(claims: Sequence[Claimed]) -> int:
    """Returns how many claims (id, fence, owner) were given for two messages: one outcome could settle the other."""
    meant: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    for claim in claims:
        meant[claim.id, claim.fence, claim.owner].add(claim.message_id)
    return sum(len(messages) > 1 for messages in meant.values())


def overlapping(claims: Sequence[Claimed], lease: float) -> list[tuple[Claimed, Claimed]]:
    """Returns pairs of claims of one message whose leases overlap.

    Valid only if handlers succeed at once and workers are killed, not stopped: then nothing else ends a lease early.
    """
    by_message: dict[int, list[Claimed]] = defaultdict(list)
    for claim in claims:
        by_message[claim.id].append(claim)
    found = []
    for group in by_message.values():
        ordered = sorted(group, key=lambda claim: claim.fence)
        found += [(one, other) for one, other in pairwise(ordered) if other.until - lease < one.until]
    return found
