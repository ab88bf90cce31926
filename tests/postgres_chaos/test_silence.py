"""A server, or a network, that accepts what is sent and never responds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tools.servers.postgres import PostgresServer
from tools.servers.proxy import Proxy

from postroom._stores.sql.postgres.asyncpg import AsyncpgPool
from postroom._stores.sql.postgres.driver import PostgresDriver
from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.postgres.psycopg import PsycopgPool
from postroom._stores.sql.postgres.settings import PoolSettings
from postroom._stores.sql.store import SqlStore
from postroom.spi import Box, Draft, State

BOX = Box("inbox", "silent")
POOLS: dict[str, Any] = {"asyncpg": AsyncpgPool, "psycopg": PsycopgPool}


@pytest.fixture
def proxy(server: PostgresServer) -> Any:
    with Proxy(server.host, server.port) as made:
        yield made


@pytest.fixture(params=POOLS)
async def store(request: Any, server: PostgresServer, proxy: Proxy, database: str) -> AsyncIterator[SqlStore]:
    """Less patient than usual."""
    url = server.url(database).replace(f":{server.port}/", f":{proxy.port}/")
    pool = POOLS[request.param](PoolSettings(url, response_timeout=0.5, connect_timeout=2))
    made = SqlStore(PostgresDriver(pool, PostgresEngine(notifies=False), name="silent", adapters=()))
    yield made
    await made.close()


async def test_a_verb_gives_up_and_the_next_one_works(store: SqlStore, proxy: Proxy) -> None:
    await store.put(BOX, [Draft("s", "1", "t", "x")])
    proxy.freeze()
    try:
        putting = asyncio.create_task(store.put(BOX, [Draft("s", "2", "t", "x")]))
        done, _ = await asyncio.wait([putting], timeout=10)
    finally:
        proxy.thaw()
    assert done, "it waits for ever"
    assert (error := putting.exception()) is not None
    assert store.is_transient(error)
    await store.put(BOX, [Draft("s", "2", "t", "x")])
    assert (await store.counts(BOX))[State.WAITING] == 2
