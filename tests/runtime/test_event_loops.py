"""A room that is used in one event loop after another, as scripts and test suites use it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postroom import Message, Postroom
from postroom.sync import Postroom as SyncPostroom
from tests import redis
from tests.postgres import clean_database, with_driver
from tests.runtime.support import soon

STORES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "memory": lambda _: {"url": "memory://"},
    "aiosqlite": lambda folder: {"url": f"sqlite:///{folder}/room.db", "deploy_schema": True},
    "aiosqlite-memory": lambda _: {"url": "sqlite:///:memory:", "deploy_schema": True},
    "asyncpg": lambda _: {"url": with_driver(clean_database(), "asyncpg")},
    "psycopg": lambda _: {"url": with_driver(clean_database(), "psycopg")},
    "redis": lambda _: {"url": redis.server(), "prefix": redis.new_prefix()},
}

# What a program leaves open in a loop that has closed is collected some time, with a warning of its driver.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Not during the next test, for which a warning is an error."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if "may lose messages" not in text]  # the Redis of the tests writes no files


class Worked:
    """A handler, and what it has handled."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self._wanted: dict[str, asyncio.Event] = {}

    async def __call__(self, message: Message[str]) -> None:
        self.payloads.append(message.payload)
        self._wanted[message.payload].set()

    async def handled_in(self, room: Postroom, payload: str) -> None:
        """Enqueue a message, and wait until it was handled."""
        self._wanted[payload] = asyncio.Event()
        await room.inbox().enqueue("t", payload, source="s", message_id=payload)
        await soon(self._wanted[payload].wait())


def room_with_worker(options: dict[str, Any]) -> tuple[Postroom, Worked]:
    room, worked = Postroom(**options), Worked()
    room.inbox().handler("t")(worked)
    return room, worked


@pytest.fixture(params=STORES)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return STORES[request.param](tmp_path)


@pytest.mark.parametrize("ending", ["nothing", "stop", "stop of the box"])
def test_workers_in_one_loop_after_another(
    options: dict[str, Any], ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    room, worked = room_with_worker(options)

    async def run(payload: str) -> None:
        assert not room.is_running
        assert room.health() == {}
        await room.start()
        await worked.handled_in(room, payload)
        assert await room.is_ready()
        assert room.is_running

    async def first() -> None:
        await run("first")
        if ending == "stop":
            await room.stop()
        elif ending == "stop of the box":
            await room.inbox().stop()

    async def second() -> None:
        await run("second")
        await room.close()

    asyncio.run(first())
    assert not room.is_running
    asyncio.run(second())
    assert not room.is_running
    assert worked.payloads == ["first", "second"]
    assert warnings_in(caplog) == []


def test_close_in_a_loop_that_did_nothing_else(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    room, worked = room_with_worker(options)

    async def first() -> None:
        await room.start()
        await worked.handled_in(room, "first")

    asyncio.run(first())
    asyncio.run(room.close())
    asyncio.run(room.close())
    assert warnings_in(caplog) == []


def test_two_loops_at_the_same_time(options: dict[str, Any]) -> None:
    """Each has workers and connections of its own, and stops only those."""
    room, worked = room_with_worker(options)
    ready, may_end, errors = threading.Event(), threading.Event(), list[BaseException]()

    async def beside() -> None:
        await room.inbox().enqueue("other", "beside", source="s", message_id="beside")
        ready.set()
        await asyncio.to_thread(may_end.wait, 10)
        assert await room.inbox().get("beside") is not None

    def run_beside() -> None:
        try:
            asyncio.run(beside())
        except BaseException as error:  # noqa: BLE001 - it is raised in the test
            errors.append(error)
            ready.set()

    async def here() -> None:
        await room.start()
        await worked.handled_in(room, "before")
        thread = threading.Thread(target=run_beside)
        thread.start()
        await asyncio.to_thread(ready.wait, 10)
        await worked.handled_in(room, "meanwhile")
        may_end.set()
        await asyncio.to_thread(thread.join, 10)
        await worked.handled_in(room, "after")
        await room.close()

    asyncio.run(here())
    assert errors == []
    assert worked.payloads == ["before", "meanwhile", "after"]


def test_a_loop_that_ends_while_the_database_works(tmp_path: Path) -> None:
    """The thread of a SQLite connection has no loop to return its result to, and goes on all the same."""
    path = tmp_path / "room.db"
    with SyncPostroom(f"sqlite:///{path}", deploy_schema=True) as deploying:
        deploying.inbox().counts()
    room = Postroom(f"sqlite:///{path}")

    async def end_while_a_put_waits() -> None:
        await room.inbox().enqueue("t", "x", source="s", message_id="1")
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(room.inbox().enqueue("t", "x", source="s", message_id="2"))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        asyncio.run(end_while_a_put_waits())
        other.execute("ROLLBACK")

    async def go_on() -> None:
        await soon(room.inbox().enqueue("t", "x", source="s", message_id="3"))
        await room.close()

    asyncio.run(go_on())
