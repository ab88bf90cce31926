"""dramatiq, which is made of threads: `batch` is their number, up to 8, its default.

It prefetches 64 messages, by its own variable of the env. Of 4 to 32 threads, and of prefetching twice as many
messages as threads (its default), 64 or 500, this was the fastest: a quarter more than its defaults. With 64, 16
threads were as fast.

It has no bulk call, and its calls block: one after the other is its fastest way in, as more threads share one
interpreter. It polls when it is idle: once a second by default, a hundred times here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["dramatiq_queue_prefetch"] = "64"  # noqa: SIM112 - its name; it is read when dramatiq is imported

import dramatiq  # type: ignore[import-not-found, unused-ignore]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject, Tally
from benchmarks.workload import TOPIC, Item

THREADS = 8
IDLE = 10
"""Milliseconds."""


class _Counter(dramatiq.Middleware):  # type: ignore[misc, unused-ignore]
    """Reports acknowledgements to the event loop."""

    def __init__(self, add: Callable[[], None]) -> None:
        self._add = add
        self._loop = asyncio.get_running_loop()

    def after_ack(self, broker: Any, message: Any) -> None:
        self._loop.call_soon_threadsafe(self._add)


class Dramatiq(Subject):
    async def install(self) -> None:
        """There are no tables."""

    async def open(self) -> None:
        self._broker, self._actor = self._connect(None)

    def _connect(self, handled: Callable[[], None] | None) -> tuple[Any, Any]:
        def handle(**payload: Any) -> None:  # noqa: ARG001
            if handled is not None:
                handled()

        broker = RedisBroker(url=self.url)
        return broker, dramatiq.actor(handle, broker=broker, actor_name=TOPIC, queue_name="bench")

    async def send_one(self, item: Item) -> None:
        self._actor.send(**item.payload)

    async def send_bulk(self, items: list[Item]) -> None:
        await self.send_each(items)

    async def drain(self, batch: int, expected: int | None) -> Span:
        tally = Tally(expected)
        broker, _ = self._connect(None)
        broker.add_middleware(_Counter(tally.add))
        worker = dramatiq.Worker(broker, worker_threads=min(batch, THREADS))
        gc.collect()
        began = time.monotonic()
        worker.start()
        await tally.wait()
        await asyncio.to_thread(worker.stop)
        broker.close()
        return Span(began, tally.last, tally.count)

    async def serve(self, handled: Callable[[], None]) -> None:
        self._serving, _ = self._connect(handled)
        self._worker = dramatiq.Worker(self._serving, worker_threads=1, worker_timeout=IDLE)
        self._worker.start()

    async def stop_serving(self) -> None:
        await asyncio.to_thread(self._worker.stop)
        self._serving.close()

    async def close(self) -> None:
        self._broker.close()
