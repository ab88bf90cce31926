"""Rooms on memory and on SQLite. Rooms of one test share a store, as the workers of one application do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import Postroom
from postroom._stores.memory import MemoryStore
from postroom.testing import Events, FrozenClock

OpenRoom = Callable[..., Awaitable[Postroom]]


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture(params=["memory", "aiosqlite"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def open_room(store: str, tmp_path: Path) -> AsyncIterator[OpenRoom]:
    opened: list[Postroom] = []
    memory: list[MemoryStore] = []

    async def open_(clock: FrozenClock | None = None, **options: Any) -> Postroom:
        options.setdefault("shutdown_timeout", timedelta(seconds=2))  # a test that fails must not take long
        if store == "memory":
            memory.extend([] if memory else [MemoryStore(clock=clock)])
            room = Postroom(store=memory[0], **options)
        else:
            room = Postroom(f"sqlite:///{tmp_path}/room.db", clock=clock, **options)
        await room.migrate()
        opened.append(room)
        return room

    yield open_
    for room in opened:
        await room.stop()
        await room.close()


@pytest.fixture
async def room(open_room: OpenRoom, events: Events) -> Postroom:
    """In real time."""
    return await open_room(observers=[events])


@pytest.fixture
async def still(open_room: OpenRoom, clock: FrozenClock, events: Events) -> Postroom:
    """A room whose clock moves only by `advance`. Call its `drain`."""
    return await open_room(clock, observers=[events])
