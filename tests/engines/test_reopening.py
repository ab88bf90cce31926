"""A store that is opened again: what was checked is not checked again, and stores share what does not change."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postroom import ArgumentTypeError, Event, OrderMismatch, SchemaMissing
from postroom._connect import open_store
from postroom._kernel.retry import StorageRetry
from postroom._kernel.verified import Verified
from postroom._stores.for_room import wrap_for_room
from postroom._stores.memory import MemoryStore
from postroom.spi import Box, ClaimRequest, Order
from postroom.sync import Postroom
from postroom.testing.conformance.base import ALICE, draft, names, seconds
from tests.postgres import create_database
from tests.support import settled

BOX, FIFO = Box("inbox", "box"), Box("inbox", "box", Order(fifo=True))


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "room.db"


@pytest.fixture
def reopen(mode: Any, path: Path) -> Callable[..., Any]:
    """Opens the store of a room."""

    def reopen(verified: Verified | None = None, **options: Any) -> Any:
        store = open_store(f"sqlite:///{path}", mode=mode, verified=verified, **options)
        return wrap_for_room(store, mode, verified=verified)

    return reopen


async def test_the_schema_is_checked_once(reopen: Callable[..., Any], path: Path) -> None:
    verified = Verified()
    first = reopen(verified, deploy_schema=True)
    await settled(first.counts(BOX))
    await settled(first.close())
    assert verified.schema
    execute(path, "DROP TABLE postroom_schema")
    again, unknown = reopen(verified), reopen(Verified())
    await settled(again.counts(BOX))
    with pytest.raises(SchemaMissing):
        await settled(unknown.counts(BOX))
    await settled(again.close())
    await settled(unknown.close())


async def test_the_order_of_a_box_is_checked_once(reopen: Callable[..., Any], path: Path) -> None:
    verified = Verified()
    first = reopen(verified, deploy_schema=True)
    await settled(first.put(BOX, [draft("1")]))
    await settled(first.close())
    assert verified.orders == {BOX.key}
    again, unknown = reopen(verified), reopen(Verified())
    with pytest.raises(OrderMismatch):
        await settled(unknown.put(FIFO, [draft("2")]))
    execute(path, "DROP TABLE postroom_box")
    await settled(again.put(BOX, [draft("2")]))
    await settled(again.close())
    await settled(unknown.close())


@pytest.mark.parametrize("url", ["sqlite:////tmp/{}.db", "postgresql://localhost/{}"])
def test_stores_share_an_engine(mode: Any, url: str) -> None:
    one, two, other = (
        open_store(url.format(name), mode=mode, prefix=prefix)
        for name, prefix in [("a", "shop_"), ("b", "shop_"), ("b", "bank_")]
    )
    assert one._driver.engine is two._driver.engine
    assert other._driver.engine is not two._driver.engine
    assert other._driver.engine.prefix == "bank_"
    assert one._queue is not two._queue


@pytest.mark.parametrize("schema", [5, ["mail"]])
def test_an_engine_is_not_looked_up_by_a_schema_that_is_no_name(mode: Any, schema: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="schema must be a str"):
        open_store("postgresql://localhost/shop", mode=mode, schema=schema)


def test_stores_that_share_an_engine_do_not_share_positions() -> None:
    """A claim begins behind the last row of the claim before it: of the same store."""
    urls = [create_database(), create_database()]
    for url in urls:
        with Postroom(url) as room:
            room.migrate()
    one, two = (open_store(url, mode="sync") for url in urls)
    assert one._driver.engine is two._driver.engine
    request = ClaimRequest(ALICE, seconds(30), 1)
    try:
        for store, name in [(two, "first"), (one, "between"), (two, "second")]:
            store.put(BOX, [draft(name)])
        assert names(one.claim(BOX, request)) == ["between"]
        assert names(two.claim(BOX, request)) == ["first"]
    finally:
        one.close()
        two.close()


async def test_a_store_has_the_name_that_its_room_gives(mode: Any) -> None:
    events: list[Event] = []
    store: Any = open_store("memory://", mode=mode)
    wrapped: Any = wrap_for_room(store, mode, [events.append], name="acme")
    await settled(wrapped.put(BOX, [draft("1")]))
    with pytest.raises(OrderMismatch, match="in acme, and"):
        await settled(wrap_for_room(store, mode, name="acme").put(FIFO, [draft("2")]))
    assert wrapped.name == "acme"
    assert [event.store for event in events] == ["acme"]
    assert store.name == "memory"


async def test_a_retry_is_logged_with_the_name_that_the_room_gives(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryStore):
        failures = 1

        def is_transient(self, error: BaseException) -> bool:
            return isinstance(error, ConnectionError)

        async def counts(self, box: Box) -> Any:
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionError
            return {}

    caplog.set_level(logging.INFO, "postroom")
    await wrap_for_room(Failing(), "async", retry=StorageRetry(), name="acme").counts(BOX)
    assert [record.getMessage() for record in caplog.records] == ["store=acme: ConnectionError; trying again"]
