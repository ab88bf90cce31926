"""arq. It starts jobs one by one, as many as `max_jobs` at a time: `batch` is that number.

It has no bulk call: many calls at once are its fastest way in. Results are not kept. It polls: twice a second by
default, a hundred times here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

from arq import create_pool, func  # type: ignore[import-not-found, unused-ignore]
from arq.connections import RedisSettings  # type: ignore[import-not-found, unused-ignore]
from arq.worker import Worker  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject
from benchmarks.workload import TOPIC, Item, chunks

AT_ONCE = 100
POLL = 0.01


class Arq(Subject):
    async def install(self) -> None:
        """There are no tables."""

    async def open(self) -> None:
        logging.getLogger("arq").setLevel(logging.ERROR)
        self._pool = await create_pool(RedisSettings.from_dsn(self.url), default_queue_name="bench")

    async def send_one(self, item: Item) -> None:
        await self._pool.enqueue_job(TOPIC, **item.payload)

    async def send_bulk(self, items: list[Item]) -> None:
        for chunk in chunks(items, AT_ONCE):
            await asyncio.gather(*(self.send_one(item) for item in chunk))

    async def drain(self, batch: int, expected: int | None) -> Span:
        worker = self._worker(batch, burst=True)
        gc.collect()
        began = time.monotonic()
        await worker.async_run()
        return Span(began, time.monotonic(), worker.jobs_complete)

    async def serve(self, handled: Callable[[], None]) -> None:
        self._running = asyncio.create_task(self._worker(1, burst=False, handled=handled).async_run())

    async def stop_serving(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])

    def _worker(self, jobs: int, *, burst: bool, handled: Callable[[], None] | None = None) -> Worker:
        async def handle(context: Any, **payload: Any) -> None:  # noqa: ARG001
            if handled is not None:
                handled()

        return Worker(
            [func(handle, name=TOPIC, keep_result=0)],
            queue_name="bench",
            redis_pool=self._pool,
            burst=burst,
            max_jobs=jobs,
            poll_delay=POLL,
            handle_signals=False,
            log_results=False,
        )

    async def close(self) -> None:
        await self._pool.aclose()
