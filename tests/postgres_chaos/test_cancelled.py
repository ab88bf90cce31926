"""Calls that are cancelled at any moment: all or nothing, and no connection is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tools.servers.base import wait_for

from postroom import NewMessage, Postroom, State
from tests.postgres import with_driver
from tests.postgres_chaos.workers import CHAOS

POOL = 4
LEASE = 0.2
"""Seconds: what a cancelled claim took comes back soon."""
SESSIONS = """
SELECT query FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


async def drain(box: Any) -> None:
    owner, left = uuid4(), True
    while left:
        claimed = await box.claim(owner, 60, 50)
        assert all(await box.ack(owner, claimed))
        counts = await box.counts()
        left = bool(counts[State.WAITING] + counts[State.CLAIMED])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_calls_may_be_cancelled_at_any_moment(quick_url: str, driver: str) -> None:
    url = quick_url
    chance = random.Random(1)
    async with Postroom(with_driver(f"{url}?pool_size={POOL}", driver), notify=False) as room:
        box, lines = room.inbox("free"), room.inbox("lines", order="fifo")
        await box.counts()

        async def put(number: int) -> None:
            many = [NewMessage("t", n, "s", f"{number}-{n}", group=str(number % 3)) for n in range(3)]
            await chance.choice((box, lines)).enqueue_many(many)

        async def work() -> None:
            owner, chosen = uuid4(), chance.choice((box, lines))
            claimed = await chosen.claim(owner, LEASE, 5)
            await chosen.ack(owner, claimed)

        async def keep_open() -> None:
            async with room.store.transaction() as tx:
                await box.enqueue("t", 1, source="s", message_id=str(chance.random()), tx=tx)
                await asyncio.sleep(0.001)

        calls: list[Any] = [put, work, keep_open]
        for number in range(150 * CHAOS):
            call = chance.choice(calls)
            task = asyncio.create_task(call(number) if call is put else call())
            await asyncio.wait([task], timeout=chance.expovariate(300))
            task.cancel()
            if chance.random() < 0.3:
                await asyncio.wait([task])
        async with asyncio.timeout(60):
            for chosen in (box, lines):
                await drain(chosen)
    with psycopg.connect(url, autocommit=True) as connection:
        halves = connection.execute(
            "SELECT split_part(message_id, '-', 1), count(*) FROM postroom_message WHERE message_id LIKE '%-%' "
            "GROUP BY box, 1 HAVING count(*) <> 3"
        ).fetchall()
        assert halves == []
        # A session ends soon after its connection, but not at once.
        wait_for(lambda: connection.execute(SESSIONS).fetchall() == [], "the end of all sessions")
