"""Rooms on every store. Rooms of one test share their messages, as the processes of one application do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import Postroom
from postroom._stores.memory import MemoryStore
from postroom.testing import Events, FrozenClock
from tests.postgres import clean_database, with_driver
from tests.redis import new_prefix
from tests.redis import server as redis_server
from tests.scenarios.support import STORES

OpenRoom = Callable[..., Awaitable[Postroom]]


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def open_room(store: str, tmp_path: Path) -> AsyncIterator[OpenRoom]:
    """Opens one more room on the messages of this test, with a pool of its own."""
    opened: list[Postroom] = []
    memory: list[MemoryStore] = []
    place: dict[str, Any] = {}
    if store == "redis":
        place = {"url": redis_server(), "prefix": new_prefix()}
    elif store == "aiosqlite":
        place = {"url": f"sqlite:///{tmp_path}/room.db"}
    elif store != "memory":
        place = {"url": with_driver(clean_database(), store)}

    async def open_(clock: FrozenClock | None = None, **options: Any) -> Postroom:
        options.setdefault("shutdown_timeout", timedelta(seconds=0.5))  # a test that fails must not take long
        if store == "memory":
            memory.extend([] if memory else [MemoryStore(clock=clock)])
            room = Postroom(store=memory[0], **options)
        else:
            room = Postroom(**place, clock=clock, **options)
        if store not in {"asyncpg", "psycopg"}:  # the shared database has its tables
            await room.migrate()
        opened.append(room)
        return room

    yield open_
    for room in opened:
        await room.close()


@pytest.fixture
async def room(open_room: OpenRoom, events: Events) -> Postroom:
    """In real time."""
    return await open_room(observers=[events])


@pytest.fixture
async def still(open_room: OpenRoom, clock: FrozenClock, events: Events) -> Postroom:
    """Time passes only when the clock is moved."""
    return await open_room(clock, observers=[events])
