"""Random histories: the same calls on the memory store, which is the specification, and on another store.

Every result must be the same, and after every call everything that `find` and `counts` return. Both stores share a
clock that the history moves.

A store may choose which group of a FIFO box comes first. There the model follows the other store: it looks at groups in
the order in which the other store took them, and must then take the same messages.

Nothing may be stuck. A claim with room takes the first in line of every free group. At the end of a history all workers
have stopped and all times have passed. Workers, one of each topic, must then handle all that is left, except messages
behind a dead letter that blocks its group.

POSTROOM_HISTORIES sets the number of histories for a longer search; `make chaos` sets it.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant

from postroom._connect import open_store
from postroom._kernel.clock import to_microseconds
from postroom.testing import FrozenClock
from tests.histories.every_verb import Histories
from tests.histories.lines import Lines
from tests.postgres import shared_database
from tests.redis import cluster, new_prefix, open_at, server
from tests.redis_invariants import complaints

HISTORIES = int(os.environ.get("POSTROOM_HISTORIES", "120"))
STEPS = 40
POSTGRES_SHARE = 5
"""One history in so many, because every statement is a round trip."""
REDIS_SHARE = 2
CLUSTER_SHARE = 8
"""One history in so many, because every verb is a round trip to one of three nodes."""


class OnPostgres(Lines):
    """On PostgreSQL, in boxes of its own."""

    keeps_places = True

    def open(self, clock: FrozenClock) -> Any:
        return open_store(shared_database(), mode="sync", clock=clock)


class OnRedis(Lines):
    """On Redis, in boxes of its own."""

    def open(self, clock: FrozenClock) -> Any:
        return open_at(server(), "sync", prefix=redis_prefix(), clock=clock)

    def client(self) -> Any:
        return redis_client()

    @invariant()
    def everything_stands_where_it_should(self) -> None:
        if self.seen:
            now, counts = to_microseconds(self.clock.now()), self.other.counts(self.box)
            assert complaints(self.client(), redis_prefix(), self.box.key, counts=counts, now=now) == []


class OnCluster(OnRedis):
    """On a real cluster, and in the other mode."""

    def open(self, clock: FrozenClock) -> Any:
        return Awaited(open_at(cluster(), "async", prefix=redis_prefix(), clock=clock))

    def client(self) -> Any:
        return cluster_client()


class PostgresHistories(OnPostgres, Histories): ...


class RedisHistories(OnRedis, Histories): ...


class ClusterHistories(OnCluster, Histories): ...


class Awaited:
    """An async store with plain methods: each call runs until it is done."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._runner.run(getattr(self._store, name)(*args, **kwargs))

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._store.close())


@functools.cache
def redis_prefix() -> str:
    return new_prefix()


@functools.cache
def redis_client() -> redis.Redis:
    return redis.Redis.from_url(server())


@functools.cache
def cluster_client() -> Any:
    return redis.RedisCluster.from_url(cluster().replace("redis+cluster", "redis").partition(",")[0])


def _settings(histories: int) -> settings:
    return settings(
        max_examples=histories,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize="POSTROOM_HISTORIES" not in os.environ,  # a longer search is another one each time
        print_blob=True,
        phases=[Phase.generate],  # a failing history is short enough to read; to shorten it further takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


SHARES: dict[type[Lines], int] = {OnPostgres: POSTGRES_SHARE, OnCluster: CLUSTER_SHARE, OnRedis: REDIS_SHARE, Lines: 1}


def _test(machine: type[Lines]) -> Any:
    """The test of a machine, with as many histories as its store has time for."""
    share = next(share for kind, share in SHARES.items() if issubclass(machine, kind))
    case: Any = machine.TestCase
    case.settings = _settings(max(HISTORIES // share, 1))
    return pytest.mark.req("IBX-106", "OBX-095", "C-26", "C-46")(case)


TestHistories = _test(Histories)
TestPostgresHistories = _test(PostgresHistories)
TestRedisHistories = _test(RedisHistories)
TestClusterHistories = _test(ClusterHistories)
TestLines = _test(Lines)
TestPostgresLines = _test(OnPostgres)
TestRedisLines = _test(OnRedis)
