"""kill -9 at each await of a guarded delivery, in every mode: what runs again, and what never does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroom import BeginStatus, MessageNotFound, State
from postroom.sync import Postroom
from postroom.testing import FrozenClock
from tests.postgres import clean_database, with_driver
from tests.redis import new_prefix, server
from tests.scenarios.guard_kills import HANDLER

MOST_STEPS = 200
ROUNDS = 12 if os.environ.get("POSTROOM_CHAOS") else 1
"""How often each await is tried, with other pauses."""
MOST_ROUNDS = ROUNDS + 5
"""The number of awaits depends on how fast the store is. More rounds follow until each phase was seen."""
PAUSES = (0.0, 0.01, 0.0005, 0.003, 0.001)
"""The seconds for which a process waits at an await before it dies: a request on its way arrives, or does not."""

Deliver = Callable[[str, int, float], bool]


class Place(NamedTuple):
    """Where the records are: for the process that is killed, and for the test."""

    url: str
    prefix: str
    sync_url: str

    @contextmanager
    def room(self) -> Iterator[Postroom]:
        """A room whose clock is an hour ahead: every lease of a killed process has passed."""
        clock = FrozenClock(datetime.now(UTC) + timedelta(hours=1))
        options: dict[str, Any] = {"prefix": self.prefix} if self.prefix else {}
        with Postroom(self.sync_url, clock=clock, **options) as room:
            yield room


@pytest.fixture(params=["sqlite", "asyncpg", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "redis":
        return Place(server(), new_prefix(), server())
    if request.param == "asyncpg":
        url = clean_database()
        return Place(with_driver(url, "asyncpg"), "", with_driver(url, "psycopg"))
    url = f"sqlite:///{tmp_path}/guard.db"
    with Postroom(url) as room:
        room.migrate()
    return Place(url, "", url)


@contextmanager
def deliveries(place: Place, mode: str, ledger: Path) -> Iterator[Deliver]:
    """Yields a function that delivers a message in a process. It returns True if the process was killed."""
    command = [sys.executable, "-m", "tests.scenarios.guard_kills", place.url, place.prefix, mode, str(ledger)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def deliver(key: str, step: int, pause: float) -> bool:
            stdin.write(f"{key} {step} {pause}\n")
            stdin.flush()
            end = stdout.readline()
            assert end in {"killed\n", "ended 0\n"}, end
            return end == "killed\n"

        try:
            yield deliver
        finally:
            stdin.close()


class Found(NamedTuple):
    """What a killed process has left."""

    state: State | None
    executions: int


def found(guard: Any, key: str, ledger: Path) -> Found:
    executions = ledger.read_text().splitlines().count(key) if ledger.exists() else 0
    try:
        return Found(guard.get(key, handler=HANDLER).state, executions)
    except MessageNotFound:
        return Found(None, executions)


class Redelivery:
    """The next delivery of a message, and whether the handler ran for it."""

    def __init__(self, room: Postroom, mode: Any) -> None:
        self.guard = room.guard("billing", mode=mode)
        self.effects = room.outbox("effects")
        self._is_transactional = mode == "transactional"

    def runs(self, key: str) -> int:
        with self.guard.run(key, handler=HANDLER) as run:
            if run.acquired and self._is_transactional:
                self.effects.enqueue("charged", key, tx=run.tx)
            return int(run.acquired)

    def effects_of(self, key: str) -> int:
        return sum(message.payload == key for message in self.effects.find(limit=10_000))


def check(mode: str, again: Redelivery, key: str, before: Found, *, killed: bool) -> None:
    """What docs/explanation/twice-or-never.md promises for a process that ends."""
    runs = again.runs(key)
    assert again.runs(key) == 0
    state, where = again.guard.get(key, handler=HANDLER).state, f"{before}, killed={killed}, runs={runs}"
    if not killed:
        assert (before.state, before.executions, runs) == (State.DONE, 1, 0)
    if mode == "mark_before":
        assert before.executions + runs <= 1, where
        if state is not State.DONE:
            assert key in {record.message_id for record in again.guard.unfinished(limit=10_000)}, where
            assert again.guard.try_begin(key, handler=HANDLER).status is BeginStatus.BUSY
        return
    assert state is State.DONE, where
    if mode == "transactional":
        assert again.effects_of(key) == 1, where
    else:
        assert 1 <= before.executions + runs <= 2, where


PHASES = {
    "lease": {(None, 0), (State.CLAIMED, 0), (State.CLAIMED, 1), (State.DONE, 1)},
    "mark_before": {(None, 0), (State.CLAIMED, 0), (State.CLAIMED, 1), (State.DONE, 1)},
    "mark_after": {(None, 0), (None, 1), (State.DONE, 1)},
    "transactional": {(None, 0), (State.CLAIMED, 0), (State.CLAIMED, 1), (State.DONE, 1)},
}
"""What the killed processes must have left, together: else an await was not reached."""


@pytest.mark.req("CEB-001", "CEB-005", "C-01")
@pytest.mark.parametrize("mode", PHASES)
def test_a_process_that_is_killed_at_each_await(place: Place, mode: str, tmp_path: Path) -> None:
    ledger, phases, kills = tmp_path / "ledger", set[Found](), 0
    with place.room() as room, deliveries(place, mode, ledger) as deliver:
        if mode == "transactional" and not room.features.transactional:
            pytest.skip("this store has no transactions")
        again = Redelivery(room, mode)
        for turn in range(MOST_ROUNDS):
            if turn >= ROUNDS and phases >= PHASES[mode]:
                break
            for step in range(1, MOST_STEPS):
                key = f"{turn}-{step}"
                killed = deliver(key, step, PAUSES[(turn + step) % len(PAUSES)])
                before = found(again.guard, key, ledger)
                check(mode, again, key, before, killed=killed)
                if not killed:
                    break
                phases.add(before)
                kills += 1
            else:
                pytest.fail(f"the delivery had not ended after {MOST_STEPS} awaits")
    print(f"{mode}: {kills} kills")  # noqa: T201 - `make chaos` shows it
    assert phases >= PHASES[mode]
