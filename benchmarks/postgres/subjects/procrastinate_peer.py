"""procrastinate, with psycopg's C implementation. It fetches jobs one by one, so `batch` is its concurrency.

Jobs are deleted when they are done (`delete_jobs="always"`), the faster choice. A queueing lock, its deduplication, is
not used.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

import procrastinate  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject
from benchmarks.workload import TOPIC, Item

POOL = 10


class Procrastinate(Subject):
    async def install(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=self.url, min_size=POOL, max_size=POOL)
        )
        self._count = 0
        self._handled: Callable[[], None] = self._add

        async def handle(**payload: Any) -> None:  # noqa: ARG001
            self._handled()

        self._task = self._app.task(name=TOPIC, queue="bench")(handle)
        await self._app.open_async()

    def _add(self) -> None:
        self._count += 1

    async def send_one(self, item: Item) -> None:
        await self._task.defer_async(**item.payload)

    async def send_bulk(self, items: list[Item]) -> None:
        await self._task.batch_defer_async(*(item.payload for item in items))

    async def drain(self, batch: int, expected: int | None) -> Span:
        self._count = 0
        gc.collect()
        began = time.monotonic()
        await self._work(concurrency=batch, wait=False, listen_notify=False)
        return Span(began, time.monotonic(), self._count)

    async def serve(self, handled: Callable[[], None]) -> None:
        self._handled = handled
        self._running = asyncio.create_task(self._work(concurrency=1, wait=True, listen_notify=True))

    async def stop_serving(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        self._handled = self._add

    async def _work(self, **options: Any) -> None:
        await self._app.run_worker_async(
            queues=["bench"], delete_jobs="always", install_signal_handlers=False, **options
        )

    async def close(self) -> None:
        await self._app.close_async()
