"""Migrations that race with each other, and with workers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from postroom import NewMessage, Postroom
from postroom._stores.sql.statements import Migration
from postroom.errors import SchemaTooNew
from postroom.sync import Postroom as SyncPostroom
from tests.next_version import add_migration
from tests.postgres import with_driver
from tests.postgres_chaos.feed import feeding
from tests.postgres_chaos.test_crashes import FED, WORK, check_promises
from tests.postgres_chaos.workers import workers_on

ROOMS = 6


def test_of_many_rooms_that_migrate_at_once_one_does_it(bare_url: str) -> None:
    url = bare_url

    def migrate(_number: int) -> list[int]:
        with SyncPostroom(url) as room:
            return room.migrate()

    with ThreadPoolExecutor(ROOMS) as pool:
        applied = list(pool.map(migrate, range(ROOMS)))
    with SyncPostroom(url) as room:
        newest = room.store.schema_version()
    assert sorted(applied) == [[]] * (ROOMS - 1) + [list(range(1, newest + 1))]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_rooms_that_make_their_tables_on_first_use_may_start_together(bare_url: str, driver: str) -> None:
    url = bare_url
    rooms = [Postroom(with_driver(url, driver), deploy_schema=True, schema="queues") for _ in range(ROOMS)]
    receipts = await asyncio.gather(
        *(room.inbox().enqueue("t", n, source="s", message_id=str(n)) for n, room in enumerate(rooms))
    )
    assert all(receipt.is_new for receipt in receipts)
    for room in rooms:
        await room.close()


def add_a_column(room: Any) -> None:
    """What the next version of this package might bring."""
    add_migration(room, Migration(99, "later", "ALTER TABLE postroom_queue ADD COLUMN later integer;\n"))


async def test_workers_go_on_while_the_tables_change_under_them(quick_url: str, tmp_path: Path) -> None:
    url = quick_url
    (tmp_path / "other").mkdir()
    with (
        workers_on(with_driver(url, "asyncpg"), tmp_path, 1, **WORK) as workers,
        workers_on(with_driver(url, "psycopg"), tmp_path / "other", 1, **WORK) as other,
    ):
        async with feeding(url, *FED) as feed:
            await feed.more(5)
            async with Postroom(url) as room:
                add_a_column(room)
                assert await room.migrate() == [99]
            await feed.more(10)
        assert not feed.errors
        async with Postroom(url) as late:  # a worker of the version before that starts now
            await late.inbox("late").find()
            assert await late.migrate() == []
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE postroom_schema SET name = 'breaking_later' WHERE version = 99")
            async with Postroom(url) as late:
                with pytest.raises(SchemaTooNew):
                    await late.inbox("late").find()
            connection.execute("DELETE FROM postroom_schema WHERE version = 99")
        await check_promises(url, workers, feed)
        workers.stop()
        other.stop()


async def test_a_migration_that_must_wait_gives_up_before_others_have_waited_long(quick_url: str) -> None:
    """While it waits for a table, everybody else waits behind it."""
    url = quick_url
    reader = await asyncpg.connect(url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch("SELECT FROM postroom_queue")  # a report, or a forgotten transaction
    async with Postroom(url) as room, Postroom(url) as other:
        add_a_column(room)
        migrating = asyncio.create_task(room.migrate())
        async with asyncio.timeout(20):
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'postroom_queue'::regclass"
            while not await reader.fetchval(waiting):
                await asyncio.sleep(0.01)
            putting = asyncio.create_task(other.inbox().enqueue_many([NewMessage("t", 1, "s", "1")]))
            with pytest.raises(asyncpg.LockNotAvailableError):
                await migrating
            assert [receipt.is_new for receipt in await putting] == [True]
        await transaction.rollback()
        assert await room.migrate() == [99]
    await reader.close()
