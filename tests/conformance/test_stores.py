"""The public behaviour suite on our own stores: each mode, each driver, and a decorated store."""

from __future__ import annotations

import inspect
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from postroom._connect import open_store
from postroom._kernel.program import Mode
from postroom._stores.for_room import wrap_for_room
from postroom._stores.memory import MemoryStore, SyncMemoryStore
from postroom._stores.sql.sqlite import aiosqlite_driver, sqlite3_driver
from postroom._stores.sql.sqlite.connection import connect
from postroom._stores.sql.store import SqlStore, SyncSqlStore
from postroom.spi import Store
from postroom.testing import FrozenClock, as_async
from postroom.testing.conformance import Reopen, StoreConformance, Suite
from tests.postgres import clean_database, shared_database, with_driver


def _memory(_path: Path, clock: FrozenClock) -> Store:
    return MemoryStore(clock=clock)


def _memory_sync(_path: Path, clock: FrozenClock) -> Store:
    return as_async(SyncMemoryStore(clock=clock))


def _sqlite3(path: Path, clock: FrozenClock) -> Store:
    return as_async(SyncSqlStore(sqlite3_driver.Sqlite3Driver(str(path), clock=clock), deploy_schema=True))


def _aiosqlite(path: Path, clock: FrozenClock) -> Store:
    return cast("Store", SqlStore(aiosqlite_driver.AiosqliteDriver(str(path), clock=clock), deploy_schema=True))


def _wrapped(path: Path, clock: FrozenClock) -> Store:
    return wrap_for_room(_aiosqlite(path, clock), "async", [lambda _event: None])


def _wrapped_sync(path: Path, clock: FrozenClock) -> Store:
    store = SyncSqlStore(sqlite3_driver.Sqlite3Driver(str(path), clock=clock), deploy_schema=True)
    return as_async(wrap_for_room(store, "sync", [lambda _event: None]))


def _postgres(driver: str, mode: Mode) -> Callable[[Path, FrozenClock], Store]:
    def make(_path: Path, clock: FrozenClock) -> Store:
        store = open_store(with_driver(shared_database(), driver), mode=mode, clock=clock)
        return cast("Store", store if mode == "async" else as_async(store))

    return make


STORES: dict[str, Callable[[Path, FrozenClock], Store]] = {
    "memory": _memory,
    "memory-sync": _memory_sync,
    "sqlite3": _sqlite3,
    "aiosqlite": _aiosqlite,
    "wrapped": _wrapped,
    "wrapped-sync": _wrapped_sync,
    "asyncpg": _postgres("asyncpg", "async"),
    "psycopg": _postgres("psycopg", "async"),
    "psycopg-sync": _postgres("psycopg", "sync"),
}


class TestStores(StoreConformance):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "conformance.db"

    @pytest.fixture(autouse=True)
    def no_wait_for_the_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """These tests are about behaviour, not about power cuts: without fsync they take a third of the time."""

        def connect_quickly(path: str) -> sqlite3.Connection:
            connection = connect(path)
            connection.execute("PRAGMA synchronous = OFF")
            return connection

        for driver in (aiosqlite_driver, sqlite3_driver):
            monkeypatch.setattr(driver, "connect", connect_quickly)

    @pytest.fixture(params=STORES)
    def store_name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    async def store(self, store_name: str, path: Path, clock: FrozenClock) -> AsyncIterator[Store]:
        if "pg" in store_name:
            clean_database()
        store = STORES[store_name](path, clock)
        yield store
        await store.close()

    @pytest.fixture
    def reopen(self, store_name: str, path: Path, clock: FrozenClock) -> Reopen:
        return lambda: STORES[store_name](path, clock)


def test_no_topic_hides_a_test_of_another() -> None:
    """Topics are joined by inheritance: of two tests with one name, one would never run."""
    defined = Counter(
        name
        for topic in inspect.getmro(StoreConformance)
        if issubclass(topic, Suite)
        for name in vars(topic)
        if name.startswith("test_")
    )
    assert defined
    assert [name for name, count in defined.items() if count > 1] == []


def test_a_sync_store_keeps_its_shape() -> None:
    store = as_async(SyncMemoryStore(name="plain"), threads=False)
    assert store.name == "plain"
    assert not store.features.durable
    assert not hasattr(store, "migrate")
