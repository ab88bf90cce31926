from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom.testing import FrozenClock
from tests.support import STORES, open_room, settled


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=STORES)
async def room(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> AsyncIterator[Any]:
    room = await open_room(request.param, tmp_path, clock)
    yield room
    await settled(room.close())
