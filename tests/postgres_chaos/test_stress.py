"""Sixteen workers in four processes on one box: no claim is given twice, each message is done once, groups in order.

POSTROOM_CHAOS=10 makes all of it ten times as long.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from postroom import Postroom
from tests.postgres import with_driver
from tests.postgres_chaos import workers as checks
from tests.postgres_chaos.worker import Options, open_box
from tests.postgres_chaos.workers import CHAOS, HOLDERS, effects, let_finish, message, workers_on

PROCESSES, WORKERS = 4, 4


@contextmanager
def watch(url: str) -> Iterator[list[str]]:
    """Looks again and again for a group that two hold at the same time."""
    found: list[str] = []
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not ended.wait(0.01):
                found.extend(row[0] for row in connection.execute(HOLDERS))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_no_message_is_claimed_twice(tmp_path: Path, quick_url: str, driver: str) -> None:
    url = quick_url
    count = 4000 * CHAOS
    async with Postroom(url) as room:
        box = open_box(room, Options(url, ""), "plain")
        for start in range(0, count // 2, 1000):
            await box.enqueue_many([message(start + number, 0) for number in range(1000)])
        with workers_on(
            with_driver(f"{url}?pool_size=4", driver), tmp_path, PROCESSES, workers=WORKERS, boxes=("plain",)
        ) as workers:
            for start in range(count // 2, count, 100):  # and while they work
                await box.enqueue_many([message(start + number, 0) for number in range(100)])
            await asyncio.to_thread(let_finish, url, workers)
            workers.stop()
    claims = workers.claims("plain")
    assert len(claims) == len({claim.id for claim in claims}) == count
    owners = {claim.owner for claim in claims}
    assert len(owners) > PROCESSES  # it was a crowd
    checks.check_completions(url, {"plain": count})


class Producer:
    """Puts the numbers of its own lines in order: by itself, or in transactions that end late, or not well."""

    def __init__(self, url: str, box: Any, lines: range, seed: int) -> None:
        self._url, self._box, self._lines = url, box, lines
        self._chance = random.Random(seed)
        self.numbers: dict[str, list[int]] = defaultdict(list)

    async def put(self, count: int) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            while any(len(self.numbers[str(line)]) < count for line in self._lines):
                line = self._chance.choice(self._lines)
                first = len(self.numbers[str(line)])
                numbers = list(range(first, min(first + self._chance.randint(1, 5), count)))
                if numbers and await self._put([message(line, number) for number in numbers], connection):
                    self.numbers[str(line)] += numbers
        finally:
            await connection.close()

    async def _put(self, messages: list[Any], connection: Any) -> bool:
        if self._chance.random() < 0.5:
            # Now and then with what is known already, which changes nothing.
            again = messages[:1] if self._chance.random() < 0.3 else []
            await self._box.enqueue_many([*messages, *again])
            return True
        transaction = connection.transaction()
        await transaction.start()
        await self._box.enqueue_many(messages, tx=connection)
        await asyncio.sleep(self._chance.uniform(0, 0.02))  # the caller has more to do
        if self._chance.random() < 0.3:
            await transaction.rollback()
            return False
        await transaction.commit()
        return True


@pytest.mark.parametrize(("groups", "length"), [(4, 60), (120, 4)])
async def test_groups_keep_their_order(tmp_path: Path, quick_url: str, groups: int, length: int) -> None:
    """Handlers fail, put off, and outlast their short leases; producers roll back and commit late."""
    url = quick_url
    options: Any = {"boxes": ("exact", "sent"), "lease": 1.0, "trouble": 0.1, "batch_size": 5}
    async with Postroom(url) as room:
        box = open_box(room, Options(url, "", **options), "exact")
        producers = [Producer(url, box, range(n, groups, 4), seed=n) for n in range(4)]
        with (
            workers_on(f"{url}?pool_size=4", tmp_path, PROCESSES, workers=WORKERS, **options) as workers,
            watch(url) as held_twice,
        ):
            await asyncio.gather(*(producer.put(length * CHAOS) for producer in producers))
            await asyncio.to_thread(let_finish, url, workers)
            workers.stop()
    everything = {line: numbers for producer in producers for line, numbers in producer.numbers.items()}
    assert sum(map(len, everything.values())) == groups * length * CHAOS
    assert not held_twice
    done = effects(url)
    done.check_exact("exact", everything)
    done.check_order("sent", everything)
    for name in ("exact", "sent"):
        checks.check_claims(workers.claims(name))
        checks.check_completions(url, {name: groups * length * CHAOS})
