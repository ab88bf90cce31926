"""Errors of PostgreSQL: which the room retries, which it raises, and what neither logs nor errors may contain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from tools.servers.base import wait_for
from tools.servers.postgres import PostgresServer

from postroom import Message, NewMessage, Postroom, State, StorageRetry
from postroom._stores.sql.postgres.errors import sqlstate
from postroom.sync import Postroom as SyncPostroom
from tests.postgres import with_driver

DRIVERS = ("asyncpg", "psycopg")
each_driver = pytest.mark.parametrize("driver", DRIVERS)
QUICK = StorageRetry(max_retries=2, initial_delay=0.01)
PASSWORD, PAYLOAD = "correct-horse", "battery-staple"


@pytest.fixture
def url(quick_url: str) -> str:
    return quick_url


@pytest.fixture
async def caller(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


def known(number: int = 1) -> NewMessage:
    return NewMessage("t", PAYLOAD, "s", str(number))


async def waits_for_a_lock(caller: Any) -> None:
    """Waits until another connection waits for the caller's locks."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    async with asyncio.timeout(10):
        while not await caller.fetchval(query):
            await asyncio.sleep(0.005)


async def set_for_all(caller: Any, setting: str, value: str) -> None:
    name = await caller.fetchval("SELECT current_database()")
    await caller.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")


@each_driver
async def test_a_deadlock_is_tried_again(url: str, caller: Any, driver: str) -> None:
    async with Postroom(with_driver(url, driver)) as room:
        box = room.inbox()
        await box.enqueue_many([known(1), known(2)])
        # A caller who takes the same locks in the other order, and whose patience with a deadlock is endless.
        await caller.execute("SET deadlock_timeout = '1h'")
        transaction = caller.transaction()
        await transaction.start()
        await caller.execute("SELECT FROM postroom_queue WHERE id = 2 FOR UPDATE")
        putting = asyncio.create_task(box.enqueue_many([known(1), known(2)]))
        await waits_for_a_lock(caller)
        await caller.execute("SELECT FROM postroom_queue WHERE id = 1 FOR UPDATE")  # got when the room has given up
        await transaction.rollback()
        assert [receipt.status for receipt in await putting] == ["duplicate", "duplicate"]


@each_driver
async def test_a_callers_serialization_failure_reaches_the_caller(url: str, caller: Any, driver: str) -> None:
    """Half of its transaction cannot be repeated by us."""
    async with Postroom(with_driver(url, driver)) as room:
        box = room.inbox()
        await box.enqueue_many([known()])
        transaction = caller.transaction(isolation="repeatable_read")
        await transaction.start()
        await caller.fetch("SELECT FROM postroom_message")
        await box.enqueue_many([known()])  # changes what the caller has read
        with pytest.raises(asyncpg.SerializationError):
            await box.enqueue_many([known()], tx=caller)
        await transaction.rollback()
        assert (await box.counts())[State.WAITING] == 1


@each_driver
async def test_an_old_snapshot_may_ack_but_not_claim_from_lines(url: str, caller: Any, driver: str) -> None:
    """A message that came after the snapshot is promoted all the same."""
    async with Postroom(with_driver(url, driver)) as room:
        box, owner = room.inbox("lines", order="fifo"), uuid4()
        await box.enqueue_many([NewMessage("t", 1, "s", "1", group="g")])
        [first] = await box.claim(owner)
        transaction = caller.transaction(isolation="repeatable_read")
        await transaction.start()
        await caller.fetch("SELECT FROM postroom_message")
        await box.enqueue_many([NewMessage("t", 2, "s", "2", group="g")])  # stands behind the first, and sleeps
        assert await box.ack(owner, [first], tx=caller) == [True]
        await transaction.commit()
        assert [message.message_id for message in await box.claim(owner)] == ["2"]


@each_driver
async def test_databases_with_other_defaults_work_too(url: str, caller: Any, driver: str) -> None:
    await set_for_all(caller, "default_transaction_isolation", "serializable")
    async with Postroom(with_driver(url, driver)) as room:
        for order in ("none", "fifo"):
            box, owner = room.inbox(order, order=order), uuid4()
            await box.enqueue_many([NewMessage("t", n, "s", str(n), group="g") for n in range(3)])
            claimed = await box.claim(owner)
            assert len(claimed) == 3
            assert await box.ack(owner, claimed) == [True] * 3


@each_driver
async def test_a_lock_timeout_is_retried_and_then_raised(url: str, caller: Any, driver: str) -> None:
    await set_for_all(caller, "lock_timeout", "50ms")
    async with Postroom(with_driver(url, driver), storage_retry=QUICK) as room:
        box = room.inbox()
        await box.enqueue_many([known()])
        transaction = caller.transaction()
        await transaction.start()
        await caller.execute("SELECT FROM postroom_message FOR UPDATE")
        with pytest.raises(Exception, match="lock timeout") as refused:
            await box.enqueue_many([known()])
        assert sqlstate(refused.value) == "55P03"
        again = asyncio.create_task(box.enqueue_many([known()]))
        await waits_for_a_lock(caller)
        await transaction.rollback()
        assert [receipt.status for receipt in await again] == ["duplicate"]


@each_driver
async def test_a_statement_timeout_is_raised_without_a_retry(url: str, caller: Any, driver: str) -> None:
    """To try it again would only take as long again."""
    await set_for_all(caller, "statement_timeout", "50ms")
    await caller.execute("SET statement_timeout = 0")
    async with Postroom(with_driver(url, driver)) as room:
        box = room.inbox()
        await box.enqueue_many([known()])
        transaction = caller.transaction()
        await transaction.start()
        await caller.execute("SELECT FROM postroom_message FOR UPDATE")
        with pytest.raises(Exception, match="statement timeout") as refused:
            await box.enqueue_many([known()])
        assert sqlstate(refused.value) == "57014"
        await transaction.rollback()
        assert (await box.counts())[State.WAITING] == 1  # the connection is still of use


@each_driver
async def test_a_database_that_is_read_only_is_not_written_to(url: str, caller: Any, driver: str) -> None:
    async with Postroom(with_driver(url, driver), storage_retry=QUICK) as room:
        await room.inbox().enqueue_many([known()])
    await set_for_all(caller, "default_transaction_read_only", "on")
    async with Postroom(with_driver(url, driver), storage_retry=QUICK) as room:
        box, lines = room.inbox(), room.inbox("lines", order="fifo")
        writes: dict[str, Any] = {
            "one": lambda: box.enqueue("t", 1, source="s", message_id="2"),
            "many": lambda: box.enqueue_many([known(3), known(4)]),
            "line": lambda: lines.enqueue("t", 1, source="s", message_id="1", group="g"),
            "claim": lambda: box.claim(uuid4()),
            "mark": lambda: box.mark_processed("1", "s"),
        }
        for name, write in writes.items():
            with pytest.raises(Exception, match="read-only transaction") as refused:
                await write()
            assert sqlstate(refused.value) == "25006", name
        assert (await box.counts())[State.WAITING] == 1


class Crowd:
    """All the connections that a server has."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections: list[psycopg.Connection] = []

    def come(self) -> None:
        while True:
            try:
                self._connections.append(psycopg.connect(self._url))
            except psycopg.OperationalError:
                return

    def go(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()


@each_driver
async def test_a_server_without_free_connections_raises_and_is_used_again(
    server: PostgresServer, database: str, driver: str
) -> None:
    server.stop()
    server.settings = {"max_connections": "8", "superuser_reserved_connections": "0", "max_wal_senders": "0"}
    server.start()
    url = server.url(database)
    crowd, handled = Crowd(url), asyncio.Event()
    room = Postroom(with_driver(url, driver), storage_retry=QUICK)
    box = room.inbox("crowded")

    @box.handler("t")
    async def handle(message: Message[str]) -> None:
        handled.set()

    try:
        await asyncio.to_thread(crowd.come)
        with pytest.raises(Exception, match="too many clients|connection slots"):
            await box.enqueue("t", PAYLOAD, source="s", message_id="1")
        await room.start()  # its workers wait for better times
        await asyncio.to_thread(crowd.go)
        wait_for(server.is_responding, "a free connection")
        await box.enqueue("t", PAYLOAD, source="s", message_id="1")
        await asyncio.wait_for(handled.wait(), 20)
    finally:
        await asyncio.to_thread(crowd.go)
        await room.stop()
        await room.close()


@each_driver
async def test_neither_logs_nor_errors_contain_passwords_or_payloads(
    url: str, caller: Any, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    refused = f"postgresql://user:{PASSWORD}@127.0.0.1:1/db"
    for place in (refused, f"{refused}?nonsense=1", refused.replace(PASSWORD, f"x/{PASSWORD}")):
        for make, wanted in ((Postroom, driver), (SyncPostroom, "psycopg")):
            texts += await said_by(make, with_driver(place, wanted))
    # This setting adds parameters to the server's errors.
    await set_for_all(caller, "log_parameter_max_length_on_error", "-1")
    await set_for_all(caller, "lock_timeout", "20ms")
    async with Postroom(with_driver(url, driver), storage_retry=QUICK) as room:
        await room.inbox().enqueue_many([known()])
        transaction = caller.transaction()
        await transaction.start()
        await caller.execute("SELECT FROM postroom_message FOR UPDATE")
        with pytest.raises(Exception, match="lock timeout"):
            await room.inbox().enqueue_many([known()])
        await transaction.rollback()
    assert texts
    for text in (*texts, caplog.text):
        assert PASSWORD not in text
        assert PAYLOAD not in text


async def said_by(make: Any, url: str) -> list[str]:
    """All that a room on an impossible address says."""
    try:
        room = make(url, storage_retry=StorageRetry.NONE)
    except ValueError as error:
        return [str(error)]
    said = [repr(room), repr(room.outbox())]
    try:
        putting = room.outbox().enqueue("t", PAYLOAD)
        if asyncio.iscoroutine(putting):
            await putting
    except Exception as error:  # noqa: BLE001 - whatever it is, its text is looked at
        said.append(f"{error!r} {error}")
    closing = room.close()
    if asyncio.iscoroutine(closing):
        await closing
    return said
