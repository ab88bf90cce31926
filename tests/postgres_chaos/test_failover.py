"""The primary dies and its replica takes over: workers and producers go on by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tools.servers.base import ServerMissing, missing, wait_for
from tools.servers.postgres import PostgresServer

from postroom import Postroom, StorageRetry
from postroom._stores.sql.postgres.errors import sqlstate
from tests.postgres import with_driver
from tests.postgres_chaos.feed import feeding
from tests.postgres_chaos.test_crashes import FED, WORK, check_promises
from tests.postgres_chaos.workers import prepare, workers_on


async def test_workers_of_both_drivers_follow_the_primary(tmp_path: Path) -> None:
    with a_server() as primary:
        prepare(primary.create_database("shop"))
        with PostgresServer.replica_of(primary) as replica:
            wait_for_every_commit(primary)
            await refuses_writes(replica.url("shop"))
            url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/shop"
            folders = [tmp_path / "asyncpg", tmp_path / "psycopg"]
            for folder in folders:
                folder.mkdir()
            with (
                workers_on(with_driver(url, "asyncpg"), folders[0], 1, **WORK) as first,
                workers_on(with_driver(url, "psycopg"), folders[1], 1, **WORK) as second,
            ):
                async with feeding(url, *FED) as feed:
                    await feed.more(10)
                    await feed.until_all_claim(first, second)
                    await asyncio.to_thread(primary.kill)
                    await asyncio.to_thread(replica.promote)
                    await feed.more(20)
                    await feed.until_all_claim(first, second)
                await check_promises(replica.url("shop"), first, feed)
                first.stop()
                second.stop()


def a_server() -> PostgresServer:
    try:
        return PostgresServer()
    except ServerMissing as reason:
        missing(reason)


def wait_for_every_commit(primary: PostgresServer) -> None:
    """A commit is acknowledged when the replica has it too: then nothing that was acknowledged can be lost."""
    primary.query("ALTER SYSTEM SET synchronous_standby_names = 'replica'")
    primary.query("SELECT pg_reload_conf()")
    state = "SELECT sync_state FROM pg_stat_replication"
    wait_for(lambda: primary.query(state) == [("sync",)], "the replica to be synchronous")


async def refuses_writes(url: str) -> None:
    """A standby alone: reads work, and a write says what it is."""
    for driver in ("asyncpg", "psycopg"):
        async with Postroom(with_driver(url, driver), storage_retry=StorageRetry.NONE) as room:
            box = room.inbox("exact", order="fifo")
            with pytest.raises(Exception, match="read-only transaction|recovery") as refused:
                await box.enqueue("t", 1, source="s", message_id="1", group="g")
            assert sqlstate(refused.value) == "25006"
            assert await box.find() == []
