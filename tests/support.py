"""What the tests of boxes share: one test for both modes and all stores."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import postroom
from postroom import sync as postroom_sync
from postroom.testing import FrozenClock
from tests.postgres import clean_database, with_driver
from tests.redis import new_prefix, server

STORES = ("memory", "memory-sync", "sqlite3", "aiosqlite", "asyncpg", "redis")


async def settled(value: Any) -> Any:
    """Returns the result of a call of either mode."""
    return await value if inspect.isawaitable(value) else value


def _place(store: str, folder: Path) -> dict[str, Any]:
    """The URL of one of STORES, and what keeps it apart from other tests."""
    name = store.removesuffix("-sync")
    if name == "memory":
        return {"url": "memory://"}
    if name == "redis":
        return {"url": server(), "prefix": new_prefix()}
    if name in {"asyncpg", "psycopg"}:
        return {"url": with_driver(clean_database(), name)}
    return {"url": f"sqlite:///{folder}/room.db"}


async def open_room(store: str, folder: Path, clock: FrozenClock | None = None, **options: Any) -> Any:
    """A room on one of STORES, with its schema and without messages."""
    sync = store.endswith("-sync") or store == "sqlite3"
    kind: Any = postroom_sync.Postroom if sync else postroom.Postroom
    room = kind(**_place(store, folder), clock=clock, **options)
    if store not in {"asyncpg", "psycopg"}:  # the shared database has its tables
        await settled(room.migrate())
    await settled(
        room.inbox().counts()
    )  # the first visit to Redis may log a warning, which tests of logs do not expect
    return room
