"""What the tests of faces share: one test for both colours and all stores."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import postroom
from postroom import sync as postroom_sync
from postroom.testing import FrozenClock

STORES = ("memory", "memory-sync", "sqlite3", "aiosqlite")


async def settled(value: Any) -> Any:
    """What a call of either colour answers."""
    return await value if inspect.isawaitable(value) else value


async def open_room(store: str, folder: Path, clock: FrozenClock | None = None, **options: Any) -> Any:
    """A room on one of STORES, with its schema."""
    url = "memory://" if store.startswith("memory") else f"sqlite:///{folder}/room.db"
    kind: Any = postroom_sync.Postroom if store in {"memory-sync", "sqlite3"} else postroom.Postroom
    room = kind(url, clock=clock, **options)
    await settled(room.migrate())
    return room
