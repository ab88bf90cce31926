"""A server that does not respond, or a network that drops packets, counts as lost in every driver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import psycopg_pool
import pytest
from tools.servers.proxy import Proxy

from postroom._stores.sql.postgres.asyncpg import AsyncpgPool
from postroom._stores.sql.postgres.driver import PostgresDriver, SyncPostgresDriver
from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.postgres.errors import ERRORS
from postroom._stores.sql.postgres.psycopg import PsycopgPool, SyncPsycopgPool
from postroom._stores.sql.postgres.settings import PoolSettings
from postroom._stores.sql.statements import Script, SqlProgram
from postroom._stores.sql.store import SqlStore, SyncSqlStore
from postroom.spi import Box, Draft, State
from tests.postgres import clean_database
from tests.support import settled

BOX = Box("inbox", "silent")
LIMIT = 0.5
"""Seconds: a shorter limit than usual."""
SIZE = 3
LONG = 30.0
"""Seconds after which a call counts as not given up."""
POOLS: dict[str, Any] = {"asyncpg": AsyncpgPool, "psycopg": PsycopgPool, "psycopg, sync": SyncPsycopgPool}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    place = urlsplit(clean_database())
    with Proxy(place.hostname or "", place.port or 5432) as made:
        yield made


@pytest.fixture(params=POOLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool(name: str, proxy: Proxy) -> Any:
    place = urlsplit(clean_database())
    url = place._replace(netloc=f"{place.username}@{proxy.host}:{proxy.port}").geturl()
    return POOLS[name](PoolSettings(url, size=SIZE, response_timeout=LIMIT, connect_timeout=5, checkout_timeout=LIMIT))


@pytest.fixture
async def store(name: str, pool: Any, proxy: Proxy) -> AsyncIterator[Any]:
    is_async = "sync" not in name.split(", ")
    driver: Any = (PostgresDriver if is_async else SyncPostgresDriver)(
        pool, PostgresEngine(notifies=False), name="silent", adapters=()
    )
    made: Any = (SqlStore if is_async else SyncSqlStore)(driver)
    yield made
    proxy.thaw()
    await settled(made.close())


def draft(message_id: str) -> Draft:
    return Draft("s", message_id, "t", "x")


async def elsewhere(call: Any, *args: Any) -> Any:
    """In a thread where it blocks, so that the test goes on."""
    return await settled(await asyncio.to_thread(call, *args))


async def put(store: Any, message_id: str) -> Any:
    return await elsewhere(store.put, BOX, [draft(message_id)])


async def given_up(call: Any, *args: Any) -> BaseException:
    """The error with which this call ends, as it must."""
    calling = asyncio.create_task(elsewhere(call, *args))
    ended, _ = await asyncio.wait([calling], timeout=LONG)
    assert ended, "it waits for ever"
    error = calling.exception()
    assert error is not None
    return error


async def test_a_verb_gives_up_and_the_next_one_works(store: Any, proxy: Proxy) -> None:
    await put(store, "1")
    await put(store, "2")  # the first connection is none of the pool's
    proxy.freeze()
    error = await given_up(store.put, BOX, [draft("3")])
    assert store.is_transient(error)
    assert ERRORS.is_connection_lost(error)
    proxy.thaw()
    await put(store, "3")
    assert (await settled(store.counts(BOX)))[State.WAITING] == 3


async def test_a_lost_connection_is_not_used_again(store: Any, pool: Any, proxy: Proxy) -> None:
    await put(store, "1")
    checkout = await elsewhere(pool.acquire)
    proxy.freeze()
    error = await given_up(pool.adapter.fetch, checkout.connection, "SELECT 1", [])
    await asyncio.wait_for(elsewhere(lambda: pool.release(checkout, broken=ERRORS.is_connection_lost(error))), LONG)
    proxy.thaw()
    again = await elsewhere(pool.acquire)
    assert again.connection is not checkout.connection
    assert [tuple(row) for row in await elsewhere(pool.adapter.fetch, again.connection, "SELECT 1", [])] == [(1,)]
    await elsewhere(pool.release, again)


async def test_a_server_that_works_for_long_is_given_up_too(store: Any, pool: Any) -> None:
    """The client cannot distinguish the two, and the lock would be of no use after the timeout."""
    await put(store, "1")
    checkout = await elsewhere(pool.acquire)
    assert store.is_transient(await given_up(pool.adapter.fetch, checkout.connection, "SELECT pg_sleep(60)", []))
    await elsewhere(lambda: pool.release(checkout, broken=True))


async def test_a_migration_may_take_longer(store: Any, pool: Any) -> None:
    def migrate() -> SqlProgram[None]:
        yield Script(f"SELECT pg_sleep({2 * LIMIT})")

    await elsewhere(store._driver.transact, migrate)
    # The limit holds again.
    checkout = await elsewhere(pool.acquire)
    await given_up(pool.adapter.fetch, checkout.connection, "SELECT pg_sleep(60)", [])
    await elsewhere(lambda: pool.release(checkout, broken=True))


@pytest.mark.parametrize("name", ["asyncpg", "psycopg"])
async def test_a_call_that_is_cancelled_meanwhile_ends_so(store: Any, proxy: Proxy, name: str) -> None:
    await put(store, "1")
    proxy.freeze()
    putting = asyncio.create_task(store.put(BOX, [draft("2")]))
    await asyncio.wait([putting], timeout=LIMIT / 5)
    putting.cancel()
    _, waits = await asyncio.wait([putting], timeout=LONG)
    assert not waits
    assert putting.cancelled()


async def test_the_end_does_not_wait_for_a_server_that_says_nothing(store: Any, proxy: Proxy) -> None:
    await put(store, "1")
    await put(store, "2")
    proxy.freeze()
    await asyncio.wait_for(elsewhere(store.close), LONG)


def test_handlers_get_a_connection_of_psycopg() -> None:
    pool: Any = SyncPsycopgPool(PoolSettings(clean_database()))
    checkout = pool.acquire()
    assert isinstance(checkout.handle, psycopg.Connection)
    assert type(checkout.handle).__module__ == psycopg.Connection.__module__
    done = threading.Event()
    checkout.handle.add_notice_handler(lambda _notice: done.set())  # as any other
    checkout.handle.execute("DO $$ BEGIN RAISE NOTICE 'received'; END $$")
    assert done.is_set()
    pool.release(checkout)
    pool.close()


@pytest.mark.parametrize("name", ["psycopg", "psycopg, sync"])
async def test_a_server_that_is_slow_to_connect_is_not_a_pool_in_use(pool: Any, proxy: Proxy, name: str) -> None:
    await elsewhere(pool.release, await elsewhere(pool.acquire))  # the first connection is none of the pool's
    proxy.freeze()
    acquiring = asyncio.create_task(elsewhere(pool.acquire))
    while proxy.connections < 2:  # the pool's, and then, when it has taken long, our own
        await asyncio.wait([acquiring], timeout=0.01)
        assert not acquiring.done()
    proxy.thaw()
    checkout = await asyncio.wait_for(acquiring, LONG)
    await elsewhere(pool.release, checkout)
    # But where all are in use, it says so.
    leases = [await elsewhere(pool.acquire) for _ in range(SIZE)]
    assert isinstance(await given_up(pool.acquire), psycopg_pool.PoolTimeout)
    for each in leases:
        await elsewhere(pool.release, each)
    await elsewhere(pool.close)
