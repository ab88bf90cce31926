"""A web service's life: requests that write and enqueue in one transaction, many at once, and some that fail.

The worker drains the outbox at the same time. In the end the messages are those of the committed orders, exactly: none
is missing, none is of an order that was rolled back, none is there twice, and each was handled once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from postroom import Message, Postroom, State
from postroom import sync as postroom_sync
from tests.engines.postgres_callers import Order, clean_shop, open_room, orders
from tests.postgres import with_driver
from tests.runtime.support import soon

TASKS = 50
THREADS = 8
REQUESTS = 3
"""One after the other, in each task."""


class Failed(Exception):
    """What a request raises after it has written and enqueued."""


def rolls_back(number: int) -> bool:
    return number % 3 == 0


@pytest.fixture
def url() -> str:
    return clean_shop()


class Worker:
    """Drains the outbox of the service, as another process would: on connections of its own."""

    def __init__(self, room: Postroom) -> None:
        self.room = room
        self.outbox = room.outbox("orders", concurrency=4)
        self.handled: Counter[str] = Counter()
        self._more = asyncio.Event()
        self.outbox.handler("order.created")(self._handle)

    async def _handle(self, message: Message[dict[str, str]]) -> None:
        self.handled[message.payload["name"]] += 1
        self._more.set()

    async def has_handled(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.handled.total() < count:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def worker(driver: str, url: str) -> AsyncIterator[Worker]:
    room = open_room(url, "psycopg" if driver == "psycopg-sync" else driver)
    worker = Worker(room)
    async with room:
        yield worker


async def assert_the_outbox_is_what_was_committed(worker: Worker) -> None:
    expected = sorted(f"order {n}" for n in range(TASKS * REQUESTS) if not rolls_back(n))
    assert sorted(orders()) == expected
    await worker.has_handled(len(expected))
    await worker.room.stop()
    messages = await worker.outbox.find(limit=1000)
    assert sorted(message.payload["name"] for message in messages) == expected
    assert {message.state for message in messages} == {State.DONE}
    assert worker.handled == Counter(expected)


@pytest.mark.req("OBX-SCP-01", "OBX-003", "C-55")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_tasks_with_sessions(driver: str, url: str, worker: Worker) -> None:
    engine = create_async_engine(with_driver(url, driver), pool_size=10, max_overflow=10)
    room = open_room(url, driver)
    outbox = room.outbox("orders")
    inside, all_inside = 0, asyncio.Event()

    async def request(number: int) -> None:
        nonlocal inside
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order(name=f"order {number}"))
            await session.flush()
            receipt = await outbox.enqueue("order.created", {"name": f"order {number}"}, tx=session)
            assert receipt.is_new
            inside += 1
            if inside == 20:  # so many transactions are open at once: as many as there are connections
                all_inside.set()
            await all_inside.wait()
            if rolls_back(number):
                raise Failed

    async def task(index: int) -> None:
        for number in range(index, TASKS * REQUESTS, TASKS):
            try:
                await request(number)
            except Failed:
                assert rolls_back(number)
            await worker.has_handled(1)  # it works while we do

    await soon(asyncio.gather(*(task(index) for index in range(TASKS))), 60)
    await assert_the_outbox_is_what_was_committed(worker)
    await room.close()
    await engine.dispose()


@pytest.mark.req("OBX-SCP-01", "OBX-003", "C-55")
@pytest.mark.parametrize("driver", ["psycopg-sync"])
async def test_threads_with_sessions(driver: str, url: str, worker: Worker) -> None:
    engine = sa.create_engine(with_driver(url, "psycopg"), pool_size=THREADS)
    all_inside = threading.Barrier(THREADS)
    with postroom_sync.Postroom(url) as room, ThreadPoolExecutor(THREADS) as threads:
        outbox = room.outbox("orders")

        def request(number: int) -> None:
            with orm.Session(engine) as session, session.begin():
                session.add(Order(name=f"order {number}"))
                session.flush()
                assert outbox.enqueue("order.created", {"name": f"order {number}"}, tx=session).is_new
                if number < THREADS:
                    all_inside.wait(30)
                if rolls_back(number):
                    raise Failed

        def one_request(number: int) -> bool:
            try:
                request(number)
            except Failed:
                return False
            return True

        loop = asyncio.get_running_loop()
        done = await soon(
            asyncio.gather(*(loop.run_in_executor(threads, one_request, n) for n in range(TASKS * REQUESTS))), 60
        )
    assert done == [not rolls_back(n) for n in range(TASKS * REQUESTS)]
    await assert_the_outbox_is_what_was_committed(worker)
    engine.dispose()
