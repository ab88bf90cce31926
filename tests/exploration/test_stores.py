"""The sequences of events that lead to the states of the memory store, on the stores that last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from postroom._connect import open_store
from postroom._stores.sql.sqlite.connection import MEMORY
from postroom._stores.sql.sqlite.sqlite3_driver import Sqlite3Driver
from postroom._stores.sql.store import SyncSqlStore
from postroom.testing import FrozenClock
from tests.exploration.replay import sample, violations
from tests.exploration.scenes import LONG, SCENES
from tests.exploration.search import Exploration
from tests.postgres import shared_database
from tests.redis import new_prefix, open_at, server


def sqlite(clock: FrozenClock) -> Any:
    return SyncSqlStore(Sqlite3Driver(MEMORY, clock=clock), deploy_schema=True, durable=False)


def postgres(clock: FrozenClock) -> Any:
    return open_store(shared_database(), mode="sync", clock=clock)


def redis(clock: FrozenClock) -> Any:
    return open_at(server(), "sync", prefix=redis_prefix(), clock=clock)


redis_prefix = functools.cache(new_prefix)

STORES: dict[str, tuple[Callable[[FrozenClock], Any], int, int]] = {
    "sqlite": (sqlite, 50, 3000),
    "postgres": (postgres, 8, 300),
    "redis": (redis, 15, 700),
}
"""How to open it, and so many sequences of each scene: in a short run, and in a long one."""


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("store", STORES)
def test_the_same_sequences_keep_the_rules(store: str, scene: str) -> None:
    open_, short, long = STORES[store]
    clock = FrozenClock()
    opened = open_(clock)
    try:
        found = violations(opened, clock, sample(sequences(scene), long if LONG else short))
    finally:
        opened.close()
    assert not found, "\n".join(map(str, found))


@functools.cache
def sequences(scene: str) -> Exploration:
    return SCENES[scene].sequences()
