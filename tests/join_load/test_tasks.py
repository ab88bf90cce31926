"""Twenty joins of ten steps, three producers and three rooms with workers, in one process.

test_processes.py does the same with processes that are killed, and more of everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom import Postroom
from tests.join_load.load import Handlers, Load, Place, Producer, check, is_handled, open_box, until

ROOMS = 3


@pytest.fixture
async def rooms(place: Place) -> AsyncIterator[list[Postroom]]:
    opened = [place.open() for _ in range(ROOMS)]
    yield opened
    for room in opened:
        await room.stop()
    for room in opened:
        await room.close()


@pytest.mark.parametrize("store", ["aiosqlite", "asyncpg", "psycopg", "redis", "cluster"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_each_join_continues_once_after_its_steps(rooms: list[Postroom], order: str) -> None:
    load = Load(20, 10)
    boxes: list[Any] = [open_box(room, order=order) for room in rooms]
    for room, box in zip(rooms, boxes, strict=True):
        Handlers(room, box, load)
        await room.start()
    producers = [Producer(box, load, group=None if order == "none" else "g") for box in boxes]
    await asyncio.gather(*(p.produce(range(n, load.joins, ROOMS)) for n, p in enumerate(producers)))
    await until(lambda: is_handled(boxes[0]), 30)
    ended = await check(rooms[0], boxes[0], load)
    assert ended["completed"]
    assert ended["failed"]
