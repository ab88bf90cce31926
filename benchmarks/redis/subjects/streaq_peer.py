"""streaq, on coredis. `batch` is its concurrency; as many again are prefetched, its default.

`enqueue_many` is its bulk call. Results are not kept (`ttl=0`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import streaq  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject
from benchmarks.workload import TOPIC, Item


class Streaq(Subject):
    async def install(self) -> None:
        """There are no tables."""

    async def open(self) -> None:
        logging.getLogger("streaq").setLevel(logging.ERROR)
        self._open = AsyncExitStack()
        self._client, self._task = self._worker(16, None)
        await self._open.enter_async_context(self._client)

    def _worker(self, concurrency: int, handled: Callable[[], None] | None) -> tuple[Any, Any]:
        async def handle(**payload: Any) -> None:  # noqa: ARG001
            if handled is not None:
                handled()

        worker = streaq.Worker(
            redis_url=self.url, queue_name="bench", concurrency=concurrency, handle_signals=False, grace_period=0
        )
        return worker, worker.task(name=TOPIC, ttl=0)(handle)

    async def send_one(self, item: Item) -> None:
        await self._task.enqueue(**item.payload)

    async def send_bulk(self, items: list[Item]) -> None:
        await self._client.enqueue_many([self._task.enqueue(**item.payload) for item in items])

    async def drain(self, batch: int, expected: int | None) -> Span:
        worker, _ = self._worker(batch, None)
        worker.burst = True
        gc.collect()
        began = time.monotonic()
        await worker.run_async()
        return Span(began, time.monotonic(), worker.counters["completed"])

    async def serve(self, handled: Callable[[], None]) -> None:
        worker, _ = self._worker(1, handled)
        self._running = asyncio.create_task(worker.run_async())

    async def stop_serving(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])

    async def close(self) -> None:
        await self._open.aclose()
