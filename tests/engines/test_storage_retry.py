"""Storage errors that pass by themselves are met with another try, but never in a caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom import ArgumentValueError, StorageRetry
from postroom._stores.retrying import RetryingStore
from postroom._stores.sql.sqlite import connection as sqlite
from postroom._stores.wrapper import find_wrapper
from postroom.sync import Postroom

QUICK = StorageRetry(initial_delay=0.001, jitter=False)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Postroom(f"sqlite:///{tmp_path}/room.db") as room:
        room.migrate()
    return tmp_path / "room.db"


@pytest.fixture
def blocker(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that holds the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


def open_room(path: Path, retry: StorageRetry, waits: list[float], unblock: Any = None) -> Postroom:
    room = Postroom(f"sqlite:///{path}", storage_retry=retry)

    async def note(seconds: float) -> None:
        waits.append(seconds)
        if unblock is not None and len(waits) == 2:
            unblock.execute("ROLLBACK")

    find_wrapper(room.store, RetryingStore)._sleep = note
    return room


@pytest.mark.req("RHI-006", "RHI-038", "C-56", "IBX-104", "OBX-093")
def test_a_busy_database_is_tried_again(path: Path, blocker: sqlite3.Connection) -> None:
    waits: list[float] = []
    with open_room(path, QUICK, waits, blocker) as room:
        assert room.outbox().enqueue("t", "p").is_new
    assert waits == [0.001, 0.002]


@pytest.mark.req("RHI-032", "C-56", "IBX-104", "OBX-093")
def test_after_the_last_retry_the_error_reaches_the_caller(path: Path, blocker: sqlite3.Connection) -> None:
    waits: list[float] = []
    with open_room(path, QUICK, waits) as room:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            room.outbox().enqueue("t", "p")
        assert len(waits) == 3
        blocker.execute("ROLLBACK")
        assert room.outbox().find() == []


@pytest.mark.req("RHI-037")
def test_retries_can_be_turned_off(path: Path, blocker: sqlite3.Connection) -> None:
    waits: list[float] = []
    with open_room(path, StorageRetry.NONE, waits) as room, pytest.raises(sqlite3.OperationalError):
        room.outbox().enqueue("t", "p")
    assert waits == []
    assert blocker.in_transaction


@pytest.mark.req("C-56")
def test_never_inside_a_callers_transaction(path: Path, blocker: sqlite3.Connection) -> None:
    waits: list[float] = []
    theirs = sqlite3.connect(path, isolation_level=None, timeout=0.001)
    theirs.execute("BEGIN")
    with open_room(path, QUICK, waits) as room, pytest.raises(sqlite3.OperationalError):
        room.outbox().enqueue("t", "p", tx=theirs)
    assert waits == []
    assert blocker.in_transaction
    theirs.close()


@pytest.mark.req("RHI-038")
def test_errors_that_do_not_pass_are_not_retried(path: Path) -> None:
    waits: list[float] = []
    with open_room(path, QUICK, waits) as room:
        room.outbox().enqueue("t", "p")
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE postroom_sequence")
        connection.commit()
        connection.close()
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            room.outbox().enqueue("t", "p")
    assert waits == []


@pytest.mark.req("RHI-032", "RHI-033", "RHI-034", "RHI-035", "RHI-036", "RHI-037")
def test_the_documented_options() -> None:
    assert StorageRetry() == StorageRetry(3, 0.1, 5.0, 2.0, jitter=True)
    assert StorageRetry.NONE.max_retries == 0
    plain = StorageRetry(jitter=False)
    assert [plain.delay(n) for n in (1, 2, 3, 10)] == [0.1, 0.2, 0.4, 5.0]
    assert all(0.05 <= StorageRetry().delay(1) <= 0.1 for _ in range(50))
    for bad in ({"max_retries": -1}, {"initial_delay": 0}, {"max_delay": -1}, {"multiplier": 0.5}):
        with pytest.raises(ArgumentValueError):
            StorageRetry(**bad)
