"""Joins under load: workers are killed, steps die, are reported and replayed, and are attached while they are handled.

Each continuation is sent once, after all steps of its join, and the counts are those of the steps. `make test` runs a
small part of it. POSTROOM_CHAOS=1 runs all of it, POSTROOM_CHAOS=10 ten times as much.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis

from postroom import JoinStatus, NewMessage, Postroom, State
from postroom._stores.redis.layout import KEYS, box_keys
from tests.join_load.load import (
    COMPLETED,
    FAILED,
    FREE,
    Load,
    Place,
    Producer,
    check,
    effects,
    is_handled,
    open_box,
    until,
)
from tests.join_load.processes import first_line, processes_on, workers_on
from tests.join_load.producer import STEPS, produce
from tests.redis_invariants import complaints

CHAOS = int(os.environ.get("POSTROOM_CHAOS", "0"))
STORES = ["asyncpg", "psycopg", "aiosqlite", "redis", "cluster"] if CHAOS else ["redis"]
PROCESSES = 4 if CHAOS else 2
MANY = 100_000
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.mark.parametrize("store", STORES)
async def test_each_join_continues_once_after_its_steps(place: Place) -> None:
    load, kills = (Load(200 * CHAOS, 50), 6 * CHAOS) if CHAOS else (Load(30, 10), 1)
    with workers_on(place, load, PROCESSES) as workers:
        async with place.open() as room:
            box: Any = open_box(room)
            began = time.monotonic()
            killing = asyncio.create_task(workers.kill_some(kills, 0.5 if CHAOS else 0.1))
            await asyncio.gather(*(Producer(box, load).produce(range(n, load.joins, 4)) for n in range(4)))
            produced = time.monotonic() - began
            await until(lambda: is_handled(box), 240 * CHAOS or 60)
            seconds = time.monotonic() - began
            await killing
            ended = await check(room, box, load)
            assert ended["completed"]
            assert ended["failed"]
            calls = len(await effects(room))
            await check_server(place, box)
    sizes = f"{place.url.partition(':')[0]}: {load.joins} joins of {load.steps} steps, {kills} kills"
    figures = f"{produced:.1f} s to put, {seconds:.1f} s in all, {dict(ended)}, {calls} calls of continuations"
    print(f"\n{sizes}: {figures}")  # noqa: T201 - figures


async def check_server(place: Place, box: Any) -> None:
    """PostgreSQL has had no deadlock. In Redis, all keys fit together, and a purge leaves no keys of joins."""
    if place.url.startswith("postgresql"):
        with psycopg.connect(f"postgresql://{place.url.partition('://')[2]}") as connection:
            assert connection.execute(DEADLOCKS).fetchone() == (0,)
    if not place.url.startswith("redis"):
        return
    with redis_client(place.url) as client:
        now = time.time_ns() // 1000
        assert complaints(client, place.prefix, box.box.key, counts=await box.counts(), now=now) == []
        while await box.purge("done", older_than=timedelta(0)):
            pass
        assert await box.joins() == []
        keys = dict(zip(KEYS, box_keys(place.prefix, box.box.key), strict=True))
        assert [name for name in KEYS[KEYS.index("joins") :] if client.exists(keys[name])] == []


def redis_client(url: str) -> Any:
    if not url.startswith("redis+cluster"):
        return redis.Redis.from_url(url)
    host, _, port = url.partition("://")[2].partition(",")[0].rpartition(":")
    return redis.RedisCluster(host, int(port))


@pytest.mark.parametrize("store", STORES)
async def test_three_levels_one_message_in_ten_joins_and_empty_joins(place: Place) -> None:
    with workers_on(place, Load(0, 0), 2):
        async with place.open() as room:
            box: Any = open_box(room)
            numbers = iter(range(10_000))
            expected: dict[int, str] = {}

            async def wait(join: Any, topic: str) -> Any:
                expected[number := next(numbers)] = topic
                return await box.enqueue_join_wait(join, True, COMPLETED, number, FAILED, number)

            for width in (1, 2, 3):
                outer = await box.start_join("t", width)
                await wait(outer, COMPLETED)
                for _ in range(width):
                    middle = await box.start_join("t", width)
                    await box.attach_message_to_join(outer, await wait(middle, COMPLETED))
                    for _ in range(width):
                        inner = await box.start_join("t", 2)
                        await box.attach_message_to_join(middle, await wait(inner, COMPLETED))
                        await box.enqueue_many(NewMessage(FREE, 1, join=inner) for _ in range(2))
            joins = [await box.start_join("t", 1) for _ in range(10)]
            receipt = await box.enqueue(FREE, 1)
            for join in joins:
                await wait(join, COMPLETED)
                await box.attach_message_to_join(join, receipt)
            empty = await box.start_join("t")
            await wait(empty, COMPLETED)
            await box.seal_join(empty)
            late = await box.start_join("t", deadline=datetime.now(UTC) + timedelta(seconds=2))
            await wait(late, FAILED)
            await box.enqueue(FREE, 1, join=late)
            await until(lambda: is_handled(box), 60)
            found = await effects(room)
            assert sorted((effect.number, effect.topic) for effect in found) == sorted(expected.items())
            assert not any(effect.pending for effect in found)
            assert (await box.get_join(late)).status is JoinStatus.FAILED


@pytest.mark.parametrize("store", STORES)
async def test_a_producer_that_dies_half_way(place: Place) -> None:
    with processes_on(place) as processes, workers_on(place, Load(0, 0), 2):
        producer = processes.start("producer")
        join = UUID(first_line(producer))
        processes.kill(producer)
        async with place.open() as room:
            box: Any = open_box(room)

            async def is_half_done() -> bool:
                return bool((await box.get_join(join)).completed_steps == STEPS // 2)

            await until(is_half_done, 60)
            assert (await box.get_join(join)).status is JoinStatus.PENDING
            assert (await box.get(str(join))).state is State.WAITING
            await produce(box, join, STEPS)  # another producer begins again
            await until(lambda: is_handled(box), 60)
            assert (await box.get_join(join)).completed_steps == STEPS
            [effect] = await effects(room)
            assert (effect.topic, effect.pending) == (COMPLETED, 0)


@pytest.mark.skipif(not CHAOS, reason="takes a minute: make chaos runs it")
@pytest.mark.parametrize("store", ["asyncpg", "redis"])
async def test_a_hundred_thousand_steps(place: Place) -> None:
    """One join, eight workers; beside it the same messages without a join."""
    taken: dict[str, float] = {}
    async with place.open() as room:
        box: Any = open_box(room)
        for name in ("plain", "joined", "plain again"):
            join = await box.start_join("t", MANY) if name == "joined" else None
            began = time.monotonic()
            for first in range(0, MANY, 5000):
                await box.enqueue_many(NewMessage(FREE, first + n, join=join) for n in range(5000))
            taken[f"{name}: put"] = time.monotonic() - began
            if join is not None:
                await box.enqueue_join_wait(join, True, COMPLETED, 0)
            began = time.monotonic()
            with workers_on(place, Load(1, 0), 8, lease=30.0):
                await until(lambda: is_handled(box), 600)
                taken[f"{name}: drain"] = time.monotonic() - began
            if join is not None:
                await check_large_join(room, box, join)
    figures = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items())
    print(f"\n{place.url.partition(':')[0]}: {figures}")  # noqa: T201 - figures


async def check_large_join(room: Postroom, box: Any, join: UUID) -> None:
    found = await box.get_join(join)
    assert (found.status, found.completed_steps, found.failed_steps) == (JoinStatus.COMPLETED, MANY, 0)
    [effect] = await effects(room)
    assert (effect.number, effect.topic, effect.pending) == (0, COMPLETED, 0)
