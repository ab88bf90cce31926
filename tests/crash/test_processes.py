"""Eight processes on one SQLite file: never two owners of one message, nothing lost, nothing done twice."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from postroom.sync import Postroom
from tests.crash.worker import ABANDON, ACK, CLAIM, LATE, NEW, RELEASE, STALE

ROOT = Path(__file__).parents[2]
PROCESSES = 8


class Claimed(NamedTuple):
    """A claim that a worker got: the call lay between `before` and `after`, the lease ends at `until`."""

    id: int
    fence: int
    before: int
    after: int
    until: int


class Settled(NamedTuple):
    """An outcome, and whether it was kept."""

    id: int
    fence: int
    before: int
    after: int
    kept: bool


class Crowd:
    """The processes, their file and their logs."""

    def __init__(self, folder: Path, messages: int, *, first: Iterable[int] = range(PROCESSES)) -> None:
        """`first`: the processes that begin to work at once."""
        self.folder, self.messages, self.file = folder, messages, folder / "shared.db"
        with Postroom(f"sqlite:///{self.file}") as room:
            room.migrate()
        with closing(sqlite3.connect(self.file)) as db:
            db.execute("CREATE TABLE effects (id INTEGER, owner TEXT)")  # nothing here forbids to do a thing twice
        self.processes = [self._start(number) for number in range(PROCESSES)]
        self.killed: list[subprocess.Popen[str]] = []
        for number in range(PROCESSES):
            self.wait_for(number, "delivered")
        for number in first:
            self.emit(number, "go")

    def _start(self, number: int) -> subprocess.Popen[str]:
        log = str(self.folder / f"{number}.log")
        arguments = [str(self.file), str(UUID(int=number + 1)), log, str(self.messages), str(number)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker", *arguments],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wait_for(self, number: int, line: str, times: int = 1) -> None:
        """Wait until a worker has said something so often."""
        stdout = self.processes[number].stdout
        assert stdout is not None
        while times:
            said = stdout.readline()
            assert said, f"worker {number} ended before it said {line!r}"
            times -= said == f"{line}\n"

    def emit(self, number: int, order: str) -> None:
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write(f"{order}\n")
        stdin.flush()

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.killed.append(self.processes[number])

    def held_by(self, number: int) -> int:
        return self.count(f"SELECT count(*) FROM postroom_queue WHERE state = 2 AND owner = '{UUID(int=number + 1)}'")

    def wait_for_the_rest(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.read()  # to its end, so that the process does not block on a full pipe
            assert process.wait() == (-signal.SIGKILL if process in self.killed else 0)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def count(self, query: str) -> int:
        with closing(sqlite3.connect(self.file)) as db:
            [(number,)] = db.execute(query).fetchall()
        return int(number)

    def notes(self, kind: str, what: str, *, of: Iterable[int] = range(PROCESSES)) -> Iterator[list[Any]]:
        for number in of:
            for line in (self.folder / f"{number}.log").read_text("utf-8").splitlines():
                noted, box, *row = json.loads(line)
                if (noted, box) == (what, kind):
                    yield row

    def claims(self, kind: str) -> dict[int, list[Claimed]]:
        """The claims of each message, by fence."""
        found: dict[int, list[Claimed]] = {}
        for row in self.notes(kind, CLAIM):
            found.setdefault(row[0], []).append(Claimed(*row))
        return {id_: sorted(claims, key=lambda claim: claim.fence) for id_, claims in found.items()}

    def settled(self, kind: str, *what: str) -> list[Settled]:
        return [Settled(*row) for one in what for row in self.notes(kind, one)]


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """All eight work to the end. Some of their claims end without an ack, and are acked when it is too late."""
    with closing(Crowd(tmp_path_factory.mktemp("peaceful"), messages=3000, first=())) as crowd:
        # Each gets a batch of each box before any goes on: on a busy machine, seven could finish before the eighth.
        for number in range(PROCESSES):
            crowd.emit(number, "take turns")
        for number in range(PROCESSES):
            crowd.wait_for(number, "settled", times=2)
        for number in range(PROCESSES):
            crowd.emit(number, "go")
        crowd.wait_for_the_rest()
        yield crowd


@pytest.fixture(scope="module")
def half_killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Four of the eight are killed in the middle: two just so, one with claims, one in an open transaction."""
    # The others begin later: on a slow machine they would finish before the victims are killed.
    with closing(Crowd(tmp_path_factory.mktemp("half-killed"), messages=1500, first=(0, 1, 4))) as crowd:
        for victim in (0, 1):
            crowd.wait_for(victim, "settled", times=5)
            crowd.kill(victim)
        for victim, order in ((2, "hold claimed"), (3, "hold open")):
            crowd.emit(victim, order)
            crowd.wait_for(victim, "holding")
            assert crowd.held_by(victim) > 0
            crowd.kill(victim)
        assert crowd.count("SELECT count(*) FROM postroom_queue WHERE state IN (1, 2)") > 0  # it was in the middle
        for number in (5, 6, 7):
            crowd.emit(number, "go")
        crowd.wait_for_the_rest()
        yield crowd


def each_kind(*, inbox: str, outbox: str) -> pytest.MarkDecorator:
    """A test of both boxes, with the requirements that it proves of each."""
    return pytest.mark.parametrize(
        "kind",
        [
            pytest.param("inbox", marks=pytest.mark.req(*inbox.split())),
            pytest.param("outbox", marks=pytest.mark.req(*outbox.split())),
        ],
    )


def check_that_claims_never_overlap(crowd: Crowd, kind: str) -> None:
    ends = {
        (settled.id, settled.fence): settled.before
        for settled in crowd.settled(kind, ACK, ABANDON, RELEASE)
        if settled.kept
    }
    for id_, claims in crowd.claims(kind).items():
        for earlier, later in pairwise(claims):
            assert earlier.fence < later.fence, f"{id_} was claimed twice with one fence"
            assert earlier.before <= later.after, f"the fence of {id_} went back"
            # The earlier claim was alive at least until its outcome was on its way, or its lease ended.
            alive_until = min(earlier.until, ends.get((id_, earlier.fence), earlier.until))
            assert later.after >= alive_until, f"{id_} had two owners"


def check_that_each_is_done_once(crowd: Crowd, messages: int) -> None:
    assert crowd.count("SELECT count(*) FROM postroom_ledger WHERE ending = 'handled'") == 2 * messages
    assert crowd.count("SELECT count(*) FROM postroom_message") == 2 * messages
    assert crowd.count("SELECT count(*) FROM postroom_queue") == 0
    assert crowd.count("SELECT count(*) FROM effects") == 2 * messages
    assert crowd.count("SELECT count(DISTINCT id) FROM effects") == 2 * messages


@each_kind(inbox="IBX-030 IBX-033 IBX-106", outbox="OBX-011 OBX-013 OBX-095")
def test_a_message_never_has_two_owners(peaceful: Crowd, kind: str) -> None:
    claims = peaceful.claims(kind)
    check_that_claims_never_overlap(peaceful, kind)
    for of_one in claims.values():
        assert [claim.fence for claim in of_one] == list(range(1, len(of_one) + 1))  # no claim is missing in the logs
    assert any(len(of_one) > 1 for of_one in claims.values())  # leases did end, and messages were given back


@each_kind(inbox="IBX-105", outbox="OBX-094")
def test_all_processes_get_work(peaceful: Crowd, kind: str) -> None:
    for number in range(PROCESSES):
        assert any(peaceful.notes(kind, CLAIM, of=[number])), f"worker {number} never got a message"


@each_kind(inbox="IBX-105", outbox="OBX-094")
def test_every_message_is_settled_once(peaceful: Crowd, kind: str) -> None:
    acked = Counter(settled.id for settled in peaceful.settled(kind, ACK) if settled.kept)
    assert len(acked) == peaceful.messages
    assert set(acked.values()) == {1}
    check_that_each_is_done_once(peaceful, peaceful.messages)


@pytest.mark.req("IBX-014")
def test_of_eight_deliveries_at_once_one_is_new(peaceful: Crowd) -> None:
    new = Counter(id_ for (id_,) in peaceful.notes("inbox", NEW))
    assert len(new) == peaceful.messages
    assert set(new.values()) == {1}


@pytest.mark.req("C-26")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
@pytest.mark.parametrize("what", [STALE, LATE])
def test_a_claim_whose_message_was_claimed_again_settles_nothing(peaceful: Crowd, kind: str, what: str) -> None:
    """Neither while the same owner holds it with a newer fence, nor when others have done it."""
    settled = peaceful.settled(kind, what)
    assert settled
    assert not any(one.kept for one in settled)


@each_kind(inbox="IBX-105", outbox="OBX-094")
def test_killing_half_of_the_processes_loses_nothing(half_killed: Crowd, kind: str) -> None:
    check_that_each_is_done_once(half_killed, half_killed.messages)
    check_that_claims_never_overlap(half_killed, kind)
    with closing(sqlite3.connect(half_killed.file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
