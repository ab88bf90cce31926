"""Many stores under load: they come and go, cannot be reached, and lose the process or the server that serves them.

The benchmark of rooms with many stores measures the same scenes. `make chaos` runs them with more stores, and with
servers that stop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from benchmarks.many.cases.processes import serve, waits_of_each
from benchmarks.many.cases.unreachable import unreachable_stores
from benchmarks.many.ledger import Ledger
from benchmarks.many.process import Process
from benchmarks.many.scenes import load, replace_stores, stop_and_start
from benchmarks.many.stores import Urls, postgres_databases, sqlite_files
from tools.servers.postgres import PostgresServer

from postroom import Postroom
from postroom._connect import open_store
from postroom._many import store_schedule
from postroom._many.store_schedule import LEASE
from postroom._many.tenant import OpenStore
from tests.many.stores import Looks
from tests.postgres import server as postgres_url
from tests.runtime.support import soon

CHAOS = int(os.environ.get("POSTROOM_CHAOS", "0"))
only_chaos = pytest.mark.skipif(not CHAOS, reason="make chaos runs it")


@pytest.fixture
def files() -> Iterator[Urls]:
    with sqlite_files(60 if CHAOS else 6) as urls:
        yield urls


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    postgres_url()  # skips the test if PostgreSQL is not installed
    with PostgresServer() as server:
        yield server


@pytest.fixture
def databases(server: PostgresServer) -> Iterator[Urls]:
    with postgres_databases(server, 20) as urls:
        yield urls


async def check_replaced(ledger: Ledger) -> None:
    await replace_stores(ledger, 200 * CHAOS or 12, between=5)
    balance = ledger.balance()
    assert balance.is_correct, balance
    assert balance.claimed == 0, "a removed store must give back what it has not begun"
    await ledger.drain()
    balance = ledger.balance()
    assert balance.is_correct, balance
    assert balance.waiting == 0
    assert balance.handled == balance.accepted


async def test_stores_that_come_and_go_lose_no_message(files: Urls, caplog: pytest.LogCaptureFixture) -> None:
    await check_replaced(Ledger(files))
    assert not [record for record in caplog.records if "failed" in record.message]


@only_chaos
async def test_databases_that_come_and_go_lose_no_message(databases: Urls) -> None:
    await check_replaced(Ledger(databases))


async def test_unreachable_stores_do_not_hold_up_the_others(files: Urls) -> None:
    """A silent port keeps its look and its connection waiting for a minute."""
    ledger = Ledger(files)
    async with Postroom(stores=files) as putting:
        for key in files:
            await ledger.put(putting, key)
    with unreachable_stores(6) as others:
        room = Postroom(stores={**others, **files})  # those that cannot be reached come first
        ledger.register(room)
        async with room:
            await ledger.wait_for_any(len(files), seconds=20)
    balance = ledger.balance()
    assert balance.is_correct, balance
    assert balance.handled == len(files)


async def test_a_room_that_stops_gives_its_soft_leases_back(files: Urls) -> None:
    ledger = Ledger(files)
    room = Postroom(stores=files)
    ledger.register(room)
    async with room:
        for key in files:
            await ledger.put(room, key)
        await ledger.wait_for_any(len(files) - ledger.handled.total(), seconds=20)
        assert None not in await free_in(files)
    assert await free_in(files) == [None] * len(files)


async def free_in(urls: Urls) -> list[float | None]:
    """Returns for how long another process has the soft lease of each store."""
    found = []
    for url in urls.values():
        store = open_store(url, mode="async")
        found.append((await store.attend([], uuid4(), LEASE)).free_in)
        await store.close()
    return found


async def test_the_soft_lease_of_a_dead_process_delays_only_the_first_message(files: Urls) -> None:
    """A process has taken the soft leases and is gone: the room helps, and then looks at once after each hint."""
    assert await free_in(files) == [None] * len(files)
    ledger = Ledger(files)
    room, other = Postroom(stores=files), Postroom(stores=files)
    ledger.register(room)
    async with room:
        for wanted in (len(files), 2 * len(files)):
            for key in files:
                await ledger.put(other, key)
            await ledger.wait_for_any(wanted - ledger.handled.total(), seconds=20)
    await other.close()
    assert ledger.balance().handled == 2 * len(files)


async def test_another_process_serves_the_stores_of_one_that_was_killed(files: Urls) -> None:
    await soon(asyncio.to_thread(kill_one_of_two, files), 60)


@only_chaos
async def test_another_process_serves_the_databases_of_one_that_was_killed(databases: Urls) -> None:
    await soon(asyncio.to_thread(kill_one_of_two, databases), 120)


def kill_one_of_two(urls: Urls) -> None:
    term = LEASE.total_seconds()
    with Process(serve, urls, "one", term) as first:
        first.receive()
        assert len(waits_of_each(urls, first)) == len(urls)  # it has the soft leases
        with Process(serve, urls, "two", term) as second:
            second.receive()
            first.kill()
            assert max(waits_of_each(urls, second)) < 30  # and not until the soft leases end


@only_chaos
async def test_a_server_that_stops_and_starts_loses_no_message(
    files: Urls, databases: Urls, server: PostgresServer
) -> None:
    on_server = dict(list(databases.items())[:5])
    ledger = Ledger({**dict(list(files.items())[:10]), **on_server})
    outage = await stop_and_start(ledger, server, on_server, messages=1000)
    balance = ledger.balance()
    assert balance.is_correct, balance
    assert outage.recovered_seconds < 70


async def test_another_process_can_take_the_soft_lease_of_a_busy_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process looks at a busy store after each visit. It must not take each lease again that has ended."""
    monkeypatch.setattr(store_schedule, "LEASE", timedelta(seconds=1))
    monkeypatch.setattr(store_schedule, "HANDOVER_SECONDS", 1000.0)
    looks = Looks(monkeypatch)
    with sqlite_files(1) as urls:
        ledger = Ledger(urls)
        room = Postroom(stores=urls)
        ledger.register(room)
        async with room, load(ledger, room, lambda: list(urls), 1):
            await looks.until("s0")
            ended = time.monotonic() + 1
            while time.monotonic() < ended:
                await ledger.wait_for_any(1)
            await looks.until("s0", count=len(looks.at("s0")) + 2)  # the second has begun after the end
            assert await free_in(urls) == [None]


@pytest.mark.parametrize(("used", "idle"), [(0.0, 1.0), (5.0, 5.0), (100.0, 10.0)])
def test_a_store_is_idle_for_as_long_as_it_was_used(used: float, idle: float) -> None:
    store = open_store("sqlite:///unused.db", mode="sync")  # it opens no file
    opened = OpenStore(store, "sqlite")
    opened.idle_since = end = opened.opened_at + used
    assert not opened.is_idle(end + idle - 0.01)
    assert opened.is_idle(end + idle + 0.01)
    opened.calls = 1
    assert not opened.is_idle(end + 1000)
