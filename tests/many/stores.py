"""What the tests of rooms with many stores share: databases of each engine, and rooms over them."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import Message, StoreConfig
from postroom._many.entry import Entry
from postroom._many.store_schedule import StoreSchedule
from postroom.spi import Attendance
from postroom.sync import Postroom as SyncPostroom
from tests import redis
from tests.postgres import clean, create_database, with_driver
from tests.runtime.support import soon

ENGINES = ("sqlite", "asyncpg")
KEYS = ("acme", "bolt", "crow")


def databases(engine: str, folder: Path, keys: Iterable[str] = KEYS) -> dict[str, str]:
    """Returns the URLs of empty databases with tables: one for each key."""
    if engine == "sqlite":
        return {key: migrated(new_database(engine, folder, key)) for key in keys}
    return {key: with_driver(clean(_postgres_database(number)), engine) for number, key in enumerate(keys)}


def new_database(engine: str, folder: Path, key: str) -> str:
    """Returns the URL of a database without tables."""
    return f"sqlite:///{folder}/{key}.db" if engine == "sqlite" else with_driver(create_database(), engine)


def migrated(url: str) -> str:
    with SyncPostroom(url.replace("+asyncpg", "+psycopg")) as room:
        room.migrate()
    return url


@functools.cache
def _postgres_database(_number: int) -> str:
    """One of the databases of this process."""
    return migrated(create_database())


def mixed(folder: Path) -> dict[str, StoreConfig]:
    """Returns one store of each engine."""
    return {
        "file": StoreConfig(databases("sqlite", folder, ["file"])["file"]),
        "server": StoreConfig(databases("asyncpg", folder, ["server"])["server"]),
        "cache": StoreConfig(redis.server(), prefix=redis.new_prefix()),
        "ram": StoreConfig("memory://"),
    }


class Handled:
    """A handler, and the messages that it has got: (store, message id)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._arrived = asyncio.Event()

    async def __call__(self, message: Message[Any]) -> None:
        self.note(message)

    def note(self, message: Message[Any]) -> None:
        self.seen.append((message.store, message.message_id))
        self._arrived.set()

    @property
    def stores(self) -> list[str]:
        """The stores, in the order in which their messages were handled."""
        return [store for store, _ in self.seen]

    async def until(self, *wanted: tuple[str, str], seconds: float = 10) -> None:
        """Waits for these messages."""

        async def arrived() -> None:
            while not set(wanted) <= set(self.seen):
                self._arrived.clear()
                await self._arrived.wait()

        await soon(arrived(), seconds)


def runs_of(stores: list[str]) -> list[tuple[str, int]]:
    """Returns how many messages of one store were handled in a row: `[("acme", 2), ("bolt", 2)]`."""
    runs: list[tuple[str, int]] = []
    for store in stores:
        if runs and runs[-1][0] == store:
            runs[-1] = (store, runs[-1][1] + 1)
        else:
            runs.append((store, 1))
    return runs


class Looks:
    """The looks of all calendars of this process, which can be waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, Attendance]] = []
        self._arrived = asyncio.Event()
        note = StoreSchedule._note

        def noting(
            schedule: StoreSchedule, entry: Entry, attendance: Attendance, lease: timedelta
        ) -> tuple[bool, float]:
            self.seen.append((entry.tenant.key, attendance))
            self._arrived.set()
            return note(schedule, entry, attendance, lease)

        monkeypatch.setattr(StoreSchedule, "_note", noting)

    def at(self, key: str) -> list[Attendance]:
        """Returns what looks at this store have found so far."""
        return [attendance for store, attendance in self.seen if store == key]

    async def until(self, *keys: str, count: int = 1, seconds: float = 10) -> None:
        """Waits until each of these stores was looked at so many times."""

        async def arrived() -> None:
            while any(len(self.at(key)) < count for key in keys):
                self._arrived.clear()
                await self._arrived.wait()

        await soon(arrived(), seconds)


async def becomes(condition: Callable[[], object], seconds: float = 20) -> None:
    """Waits until a condition of a room is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def planned(room: Any) -> dict[str, float]:
    """Waits until no look is under way. Returns in how many seconds each store is looked at."""
    entries = room._source.schedule._entries
    await becomes(lambda: not any(entry.is_looking or entry.at == math.inf for entry in entries.values()))
    now = asyncio.get_running_loop().time()
    return {key: entry.at - now for key, entry in entries.items()}
