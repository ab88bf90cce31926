"""taskiq, with the brokers of taskiq-redis: on a stream, which acknowledges, and on a list, which does not.

`batch` is how many tasks run beside each other; a stream is read in pieces of 100 by default, and of `batch` where that
is more. There is no bulk call: many calls at once are the fastest way in. No result backend. A drain ends with the last
handler call: the last acks are free.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from taskiq.receiver import Receiver  # type: ignore[import-not-found, unused-ignore]
from taskiq_redis import ListQueueBroker, RedisStreamBroker  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject, Tally
from benchmarks.workload import TOPIC, Item, chunks

AT_ONCE = 100


class _Taskiq(Subject):
    async def install(self) -> None:
        """`open` has made the group."""

    async def open(self) -> None:
        logging.getLogger("taskiq").setLevel(logging.CRITICAL)  # it complains when it is ended
        self._broker, self._task = await self._connect(AT_ONCE, None)

    @abstractmethod
    def _make(self, batch: int) -> Any:
        """A broker."""

    async def _connect(self, batch: int, handled: Callable[[], None] | None) -> tuple[Any, Any]:
        async def handle(**payload: Any) -> None:  # noqa: ARG001
            if handled is not None:
                handled()

        broker = self._make(batch)
        task = broker.register_task(handle, task_name=TOPIC)
        await broker.startup()
        return broker, task

    async def send_one(self, item: Item) -> None:
        await self._task.kiq(**item.payload)

    async def send_bulk(self, items: list[Item]) -> None:
        for chunk in chunks(items, AT_ONCE):
            await asyncio.gather(*(self.send_one(item) for item in chunk))

    async def drain(self, batch: int, expected: int | None) -> Span:
        tally = Tally(expected)
        broker, _ = await self._connect(batch, tally.add)
        gc.collect()
        began = time.monotonic()
        end = self._start(broker, batch, batch)
        await tally.wait()
        await self._acked()
        await end()
        return Span(began, tally.last, tally.count)

    def _start(self, broker: Any, tasks: int, prefetch: int) -> Callable[[], Awaitable[None]]:
        """A worker; what ends it. To cancel it alone, as `run_receiver_task` wants, can take for ever."""
        receiver = Receiver(broker, max_async_tasks=tasks, max_prefetch=prefetch, run_startup=False)
        finished = asyncio.Event()
        running = asyncio.create_task(receiver.listen(finished))

        async def end() -> None:
            finished.set()
            running.cancel()
            await asyncio.wait([running], timeout=0.1)
            await broker.shutdown()  # it may still wait for a message: then its connection is closed
            await asyncio.wait([running], timeout=5)
            if running.done() and not running.cancelled():
                running.exception()

        return end

    async def _acked(self) -> None:
        """Wait for the last acks."""

    async def serve(self, handled: Callable[[], None]) -> None:
        broker, _ = await self._connect(1, handled)
        self._end = self._start(broker, 1, 0)

    async def stop_serving(self) -> None:
        await self._end()

    async def close(self) -> None:
        await self._broker.shutdown()


class TaskiqStream(_Taskiq):
    def _make(self, batch: int) -> Any:
        return RedisStreamBroker(self.url, queue_name="bench", xread_count=max(batch, 100))

    async def _acked(self) -> None:
        async with Redis.from_url(self.url) as client, asyncio.timeout(5):
            while (await client.xpending("bench", "taskiq"))["pending"]:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)


class TaskiqList(_Taskiq):
    def _make(self, batch: int) -> Any:
        return ListQueueBroker(self.url, queue_name="bench")
