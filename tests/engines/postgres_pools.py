"""Everything that a user of PostgreSQL may pass as `pool`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import psycopg_pool
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from tests.postgres import with_driver

SIZE = 5

OpenPool = Callable[[str], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def none(_url: str) -> AsyncIterator[None]:
    """The room makes one of its own."""
    yield None


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=0, max_size=SIZE) as pool:
        yield pool


@asynccontextmanager
async def psycopg_pool_async(url: str, *, autocommit: bool) -> AsyncIterator[Any]:
    async with psycopg_pool.AsyncConnectionPool(
        url, min_size=0, max_size=SIZE, kwargs={"autocommit": autocommit}, open=False
    ) as pool:
        yield pool


@asynccontextmanager
async def psycopg_pool_sync(url: str, *, autocommit: bool) -> AsyncIterator[Any]:
    with psycopg_pool.ConnectionPool(
        url, min_size=0, max_size=SIZE, kwargs={"autocommit": autocommit}, open=False
    ) as pool:
        yield pool


@asynccontextmanager
async def async_engine(url: str, *, driver: str, **options: Any) -> AsyncIterator[Any]:
    engine = create_async_engine(with_driver(url, driver), pool_size=SIZE, max_overflow=0, **options)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def sync_engine(url: str, **options: Any) -> AsyncIterator[Any]:
    engine = sa.create_engine(with_driver(url, "psycopg"), pool_size=SIZE, max_overflow=0, **options)
    yield engine
    engine.dispose()


ENGINES: dict[str, OpenPool] = {
    "AsyncEngine-asyncpg": partial(async_engine, driver="asyncpg"),
    "AsyncEngine-psycopg": partial(async_engine, driver="psycopg"),
    "AsyncEngine-asyncpg-autocommit": partial(async_engine, driver="asyncpg", isolation_level="AUTOCOMMIT"),
    "AsyncEngine-psycopg-autocommit": partial(async_engine, driver="psycopg", isolation_level="AUTOCOMMIT"),
}
THEIRS: dict[str, OpenPool] = {
    "asyncpg.Pool": asyncpg_pool,
    "AsyncConnectionPool": partial(psycopg_pool_async, autocommit=True),
    "AsyncConnectionPool-implicit": partial(psycopg_pool_async, autocommit=False),
    **ENGINES,
}
ASYNC_POOLS: dict[str, OpenPool] = {"asyncpg": none, "psycopg": none, **THEIRS}
"""For async code. Of the user's own, and, by the names of the drivers, of the room's own."""
SYNC_POOLS: dict[str, OpenPool] = {
    "ConnectionPool": partial(psycopg_pool_sync, autocommit=True),
    "ConnectionPool-implicit": partial(psycopg_pool_sync, autocommit=False),
    "Engine": sync_engine,
    "Engine-autocommit": partial(sync_engine, isolation_level="AUTOCOMMIT"),
}
