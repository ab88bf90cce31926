"""saq on Redis. A task takes one job at a time: `batch` is its concurrency.

It has no bulk call: many calls at once are its fastest way in. Jobs are deleted when they are done (`ttl=-1`), the
faster choice. Its sweep now and then repeats a job that another task has just taken: such a job counts once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

from saq import Worker  # type: ignore[import-not-found, unused-ignore]
from saq.queue.redis import RedisQueue  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject, Tally
from benchmarks.workload import TOPIC, Item, chunks

AT_ONCE = 100


class Saq(Subject):
    async def install(self) -> None:
        """There are no tables."""

    async def open(self) -> None:
        logging.getLogger("saq").setLevel(logging.ERROR)
        self._queue = RedisQueue.from_url(self.url, name="bench", max_concurrent_ops=AT_ONCE)
        await self._queue.connect()

    async def send_one(self, item: Item) -> None:
        await self._queue.enqueue(TOPIC, ttl=-1, **item.payload)

    async def send_bulk(self, items: list[Item]) -> None:
        for chunk in chunks(items, AT_ONCE):
            await asyncio.gather(*(self.send_one(item) for item in chunk))

    async def drain(self, batch: int, expected: int | None) -> Span:
        tally = Tally(expected)
        worker = self._worker(batch, after=tally.add)  # after: when its job is deleted
        gc.collect()
        began = time.monotonic()
        running = asyncio.create_task(worker.start())
        await tally.wait()
        await worker.stop()
        await running
        return Span(began, tally.last, tally.count)

    async def serve(self, handled: Callable[[], None]) -> None:
        self._serving = self._worker(1, handled=handled)
        self._running = asyncio.create_task(self._serving.start())

    async def stop_serving(self) -> None:
        await self._serving.stop()
        await self._running

    def _worker(
        self, concurrency: int, handled: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> Worker[Any]:
        async def handle(context: Any, **payload: Any) -> None:  # noqa: ARG001
            if handled is not None:
                handled()

        done: set[str] = set()

        async def ended(context: Any) -> None:
            key = context["job"].key
            if after is not None and key not in done:
                done.add(key)
                after()

        worker = Worker(self._queue, [(TOPIC, handle)], concurrency=concurrency, after_process=ended)
        worker.SIGNALS = []
        return worker

    async def close(self) -> None:
        await self._queue.disconnect()
