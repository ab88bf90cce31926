"""Locks that other clients of a PostgreSQL database hold for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tests.postgres import shared_database

WAITERS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


@asynccontextmanager
async def connected() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(shared_database())
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def row_locked(id_: int) -> AsyncIterator[None]:
    """Locks a queue row on another connection, as a claim does."""
    async with connected() as connection, connection.transaction():
        found = await connection.fetch("SELECT id FROM postroom_queue WHERE id = $1 FOR NO KEY UPDATE", id_)
        assert len(found) == 1
        yield


async def begun(call: Coroutine[Any, Any, Any], seconds: float = 5) -> asyncio.Task[Any]:
    """The call as a task that has either ended or waits for a lock."""
    task = asyncio.create_task(call)
    async with connected() as watcher, asyncio.timeout(seconds):
        while not task.done() and not await watcher.fetchval(WAITERS):
            await asyncio.wait([task], timeout=0.005)
    return task
