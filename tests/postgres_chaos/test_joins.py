"""Joins under load: workers are killed, steps die, are reported and replayed, and are attached while they are handled.

Each continuation is handled once, after all steps of its join, and the counts are those of the steps.
POSTROOM_CHAOS=10 makes all of it ten times as long.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import JoinStatus, NewMessage, Postroom
from tests.join_load.load import (
    COMPLETED,
    EFFECTS,
    FAILED,
    FREE,
    Load,
    Producer,
    check,
    effects,
    open_box,
    query,
    replay_dead,
    until,
)
from tests.postgres import with_driver
from tests.postgres_chaos.workers import CHAOS, ROOT

PROCESSES = 4
LEASE = 2.0
MANY = 100_000
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


class Processes:
    """Worker processes that can be killed and are replaced."""

    def __init__(self, url: str, load: Load, lease: float = LEASE) -> None:
        self._command = [sys.executable, "-m", "tests.join_load.worker", url]
        self._command += map(str, (load.joins, load.steps, load.seed, lease))
        self.running: list[subprocess.Popen[str]] = []

    def start(self, count: int) -> None:
        pipe = subprocess.PIPE
        new = [subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
        self.running += new
        for process in new:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.running.remove(process)


@contextmanager
def processes_on(url: str, load: Load, count: int = PROCESSES, lease: float = LEASE) -> Iterator[Processes]:
    processes = Processes(url, load, lease)
    try:
        processes.start(count)
        yield processes
    finally:
        for process in list(processes.running):
            processes.kill(process)


async def kill_some(processes: Processes, kills: int, seconds: float) -> None:
    chance = random.Random(1)
    for _ in range(kills):
        await asyncio.sleep(seconds)
        await asyncio.to_thread(processes.kill, chance.choice(processes.running))
        await asyncio.to_thread(processes.start, 1)


@pytest.fixture(params=["asyncpg", "psycopg", "aiosqlite"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "aiosqlite":
        place = f"sqlite:///{tmp_path}/load.db"
    else:
        place = with_driver(request.getfixturevalue("quick_url"), request.param)
    async with Postroom(place) as room:
        await room.migrate()
        async with room.store.transaction() as tx:
            await query(tx, EFFECTS)
    return place


async def test_each_join_continues_once_after_its_steps(url: str) -> None:
    load, kills = Load(200 * CHAOS, 50), 6 * CHAOS
    with processes_on(url, load) as processes:
        async with Postroom(url) as room:
            box: Any = open_box(room)
            producers = [Producer(box, load).produce(range(number, load.joins, 4)) for number in range(4)]
            began = time.monotonic()
            killing = asyncio.create_task(kill_some(processes, kills, 0.5))
            await asyncio.gather(*producers)
            produced = time.monotonic() - began

            async def is_finished() -> bool:
                return not await replay_dead(box) and len(await effects(room)) >= load.joins

            await until(is_finished, 240 * CHAOS)
            seconds = time.monotonic() - began
            await killing
            ended = await check(room, box, load)
            if "postgresql" in url:
                async with room.store.transaction() as tx:
                    [(deadlocks,)] = await query(tx, DEADLOCKS)
                assert deadlocks == 0
            sizes = f"{load.joins} joins of {load.steps} steps, {kills} kills"
            print(f"\n{sizes}: {produced:.1f} s to put, {seconds:.1f} s in all, {dict(ended)}")  # noqa: T201 - figures


async def test_three_levels_one_message_in_ten_joins_and_a_producer_that_dies(url: str) -> None:
    load = Load(0, 0)
    with processes_on(url, load, 2):
        async with Postroom(url) as room:
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
            forgotten = await box.start_join("t")
            await box.enqueue_join_wait(forgotten, True, COMPLETED, -1, FAILED, -1)
            late = await box.start_join("t", deadline=datetime.now(UTC) + timedelta(seconds=3))
            await wait(late, FAILED)
            for join in (forgotten, late):
                await box.enqueue(FREE, 1, join=join)

            async def is_finished() -> bool:
                return len(await effects(room)) >= len(expected)

            await until(is_finished, 60)
            await asyncio.sleep(0.5)
            found = await effects(room)
            assert sorted((number, topic) for number, topic, _ in found) == sorted(expected.items())
            assert not any(pending for _, _, pending in found)
            assert (await box.get_join(forgotten)).status is JoinStatus.PENDING
            assert (await box.get_join(late)).status is JoinStatus.FAILED


@pytest.mark.parametrize("url", ["asyncpg"], indirect=True)
async def test_a_hundred_thousand_steps(url: str) -> None:
    """One join, eight workers; beside it the same messages without a join."""
    load = Load(1, 0)
    taken: dict[str, float] = {}
    async with Postroom(url) as room:
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
            with processes_on(url, load, 8, lease=30.0):

                async def is_finished() -> bool:
                    async with room.store.transaction() as tx:
                        [(left,)] = await query(tx, "SELECT count(*) FROM postroom_queue")
                    return bool(left == 0)

                await until(is_finished, 600)
                taken[f"{name}: drain"] = time.monotonic() - began
        assert await effects(room) == [(0, COMPLETED, 0)]
    print("\n" + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken.items()))  # noqa: T201 - figures
