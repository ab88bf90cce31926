from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom import Postroom
from postroom.testing import FrozenClock
from tests.support import open_room


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory", "aiosqlite", "asyncpg", "redis"])
async def room(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> AsyncIterator[Postroom]:
    room = await open_room(request.param, tmp_path, clock)
    yield room
    await room.close()


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
async def sql_room(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> AsyncIterator[Postroom]:
    """A room on a store with transactions."""
    room = await open_room(request.param, tmp_path, clock)
    yield room
    await room.close()
