"""Twenty joins of ten steps, three producers and three rooms with workers, in one process.

tests/postgres_chaos/test_joins.py does the same with processes that are killed, and more of everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom import Postroom
from tests.join_load.load import EFFECTS, Handlers, Load, Producer, check, effects, open_box, query, replay_dead, until
from tests.postgres import clean_database, with_driver

ROOMS = 3


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
async def rooms(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Postroom]]:
    is_sqlite = request.param == "aiosqlite"
    url = f"sqlite:///{tmp_path}/load.db" if is_sqlite else with_driver(clean_database(), request.param)
    opened = [Postroom(url) for _ in range(ROOMS)]
    await opened[0].migrate()
    async with opened[0].store.transaction() as tx:
        await query(tx, EFFECTS)
    yield opened
    for room in opened:
        await room.stop()
    async with opened[0].store.transaction() as tx:
        await query(tx, "DROP TABLE join_effects")
    for room in opened:
        await room.close()


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_each_join_continues_once_after_its_steps(rooms: list[Postroom], order: str) -> None:
    load = Load(20, 10)
    boxes: list[Any] = [open_box(room, order=order) for room in rooms]
    for room, box in zip(rooms, boxes, strict=True):
        Handlers(box, load)
        await room.start()
    producers = [Producer(box, load, group=None if order == "none" else "g") for box in boxes]
    await asyncio.gather(*(p.produce(range(n, load.joins, ROOMS)) for n, p in enumerate(producers)))

    async def is_finished() -> bool:
        return not await replay_dead(boxes[0]) and len(await effects(rooms[0])) >= load.joins

    await until(is_finished, 30)
    ended = await check(rooms[0], boxes[0], load)
    assert ended["completed"]
    assert ended["failed"]
