"""A room with many stores that is used in several event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom import Message, Postroom
from tests.many.stores import KEYS, becomes, databases
from tests.runtime.support import put

# What a program leaves open in a loop that has closed is collected some time, with a warning of its driver.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Not during the next test, for which a warning is an error."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_one_event_loop_after_another(engine: str, tmp_path: Path) -> None:
    """As scripts and test suites use a room."""
    room = Postroom(stores=databases(engine, tmp_path))
    seen: list[tuple[str, str]] = []

    @room.inbox().handler("t")
    async def handle(message: Message[Any]) -> None:
        seen.append((message.store, message.message_id))

    async def use(number: int) -> None:
        for key in KEYS:
            await put(room.router.inbox(key), number)
        assert await room.drain() == 3

    for number in range(3):
        asyncio.run(use(number))
    asyncio.run(room.close())
    assert len(seen) == 9


def test_two_event_loops_at_once(engine: str, tmp_path: Path) -> None:
    """A worker in one thread, puts in another."""
    room = Postroom(stores=databases(engine, tmp_path))
    all_done, seen = threading.Event(), set[tuple[str, str]]()

    @room.inbox().handler("t")
    async def handle(message: Message[Any]) -> None:
        seen.add((message.store, message.message_id))
        if len(seen) == 30:
            all_done.set()

    async def work() -> None:
        await room.start()
        started.set()
        await becomes(all_done.is_set, 30)
        await room.stop()

    async def enqueue() -> None:
        for number in range(10):
            for key in KEYS:
                await put(room.router.inbox(key), number)

    started = threading.Event()
    worker = threading.Thread(target=asyncio.run, args=[work()])
    worker.start()
    assert started.wait(10)
    asyncio.run(enqueue())
    worker.join(40)
    assert len(seen) == 30
    asyncio.run(room.close())
