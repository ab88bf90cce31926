"""pgqueuer, with asyncpg and a pool: faster than its driver with one connection, whose statements wait for each other.

Installed as it is by default, that is durable: all tables are logged. Deduplication is off, as by default. It is given
the payload as bytes, encoded before the clock starts.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import asyncpg
from pgqueuer.db import AsyncpgPoolDriver  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.models import Job  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.queries import Queries  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject, Tally
from benchmarks.workload import TOPIC, Item

POOL = 5


class Pgqueuer(Subject):
    async def install(self) -> None:
        await self._queries.install()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=POOL, max_size=POOL)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def send_one(self, item: Item) -> None:
        await self._queries.enqueue(TOPIC, item.text.encode())

    async def send_bulk(self, items: list[Item]) -> None:
        count = len(items)
        await self._queries.enqueue([TOPIC] * count, [item.text.encode() for item in items], [0] * count)

    async def drain(self, batch: int, expected: int | None) -> Span:
        tally = Tally(expected)
        manager = self._manager(tally.add)
        gc.collect()
        began = time.monotonic()
        await manager.run(batch_size=batch, mode=QueueExecutionMode.drain)
        return Span(began, time.monotonic(), tally.count)

    async def serve(self, handled: Callable[[], None]) -> None:
        self._serving = self._manager(handled)
        self._running = asyncio.create_task(self._serving.run())

    async def stop_serving(self) -> None:
        self._serving.shutdown.set()
        await self._running

    def _manager(self, handled: Callable[[], None]) -> QueueManager:
        manager = QueueManager(Queries(AsyncpgPoolDriver(self._pool)))

        async def handle(job: Job) -> None:  # noqa: ARG001
            handled()

        manager.entrypoint(TOPIC)(handle)
        return manager

    async def close(self) -> None:
        await self._pool.close()
