"""A SQLite file that cannot be opened leaves nothing behind."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from postroom import Postroom


def test_its_thread_does_not_outlive_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would report to an event loop that has closed, with a traceback on stderr."""
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = threading.active_count()

    async def fail(*, transaction: bool) -> None:
        room = Postroom(f"sqlite:///{tmp_path}/missing/room.db")
        opening = room.store.transaction().__aenter__() if transaction else room.migrate()
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            await opening
        assert threading.active_count() == before

    for number in range(100):
        asyncio.run(fail(transaction=number % 2 == 1))
    assert failed == []
