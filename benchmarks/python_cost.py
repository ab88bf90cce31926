"""Prints what Python costs per message: calls per enqueue, calls and CPU time per drained message.

    python -m benchmarks.python_cost [--stores memory,sqlite,redis,postgres] [--count 20000] [--rounds 5]

A box is filled, then drained in batches of 500, with one call of an empty async handler per message. The CPU time is
that of this process without garbage collection; the work of a server is not part of it. Calls are counted with
`sys.setprofile`: Python functions (a coroutine each time it is resumed) and C functions, in the main thread only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple, Self
from uuid import uuid4

from postroom import Inbox, Message, NewMessage, Postroom

BATCH = 500
PUT_BATCH = 1000
COUNTED = 2000
"""Messages in a run that counts calls."""
ENQUEUED = 200
"""Single enqueues in a run that counts calls."""
ROUNDS = 5


def urls(folder: str) -> dict[str, str]:
    return {
        "memory": "memory://",
        "sqlite": f"sqlite:///{folder}/cost.db",
        "redis": os.environ.get("POSTROOM_TEST_REDIS", "redis://127.0.0.1:6379/0"),
        "postgres": os.environ.get("POSTROOM_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres"),
    }


class CallCounter:
    """Counts calls in the current thread while it is open."""

    def __init__(self) -> None:
        self.python = self.c = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._count)
        return self

    def _count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self.python += 1
        elif event == "c_call":
            self.c += 1

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


class Calls(NamedTuple):
    """Calls per message."""

    python: float
    c: float


class Times(NamedTuple):
    """Microseconds per message."""

    cpu: float
    elapsed: float


@asynccontextmanager
async def _box(url: str) -> AsyncIterator[tuple[Postroom, Inbox]]:
    """Opens a new box with an empty handler. Deletes its messages at the end."""
    async with Postroom(url) as room:
        if not url.startswith(("memory", "redis")):
            await room.migrate()
        inbox = room.inbox(f"cost-{uuid4().hex[:8]}", batch_size=BATCH)

        @inbox.handler("cost")
        async def handle(_message: Message) -> None:
            pass

        try:
            yield room, inbox
        finally:
            await inbox.purge("done", older_than=timedelta(0))


async def _fill(inbox: Inbox, count: int) -> None:
    for start in range(0, count, PUT_BATCH):
        numbers = range(start, min(start + PUT_BATCH, count))
        await inbox.enqueue_many([NewMessage("cost", {"number": n}, source="cost", message_id=str(n)) for n in numbers])


async def calls_per_enqueue(url: str) -> Calls:
    async with _box(url) as (_, inbox):
        await inbox.enqueue("cost", {"number": 0}, source="cost", message_id="first")
        with CallCounter() as calls:
            for number in range(ENQUEUED):
                await inbox.enqueue("cost", {"number": number}, source="cost", message_id=str(number))
    return Calls(calls.python / ENQUEUED, calls.c / ENQUEUED)


async def calls_per_drained(url: str) -> Calls:
    async with _box(url) as (room, inbox):
        await _fill(inbox, COUNTED)
        with CallCounter() as calls:
            assert await room.drain() == COUNTED
    return Calls(calls.python / COUNTED, calls.c / COUNTED)


async def time_per_drained(url: str, count: int) -> Times:
    async with _box(url) as (room, inbox):
        await _fill(inbox, count)
        gc.collect()
        gc.disable()
        cpu, elapsed = time.process_time(), time.perf_counter()
        drained = await room.drain()
        cpu, elapsed = time.process_time() - cpu, time.perf_counter() - elapsed
        gc.enable()
        assert drained == count
    return Times(cpu / count * 1e6, elapsed / count * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="memory,sqlite,redis")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    print("store     calls per enqueue      calls per drained message     µs of CPU per drained message")
    print("          Python        C        Python        C               lowest   median   (elapsed)")
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory() as folder:
            url = urls(folder)[store]
            enqueue = asyncio.run(calls_per_enqueue(url))
            drain = asyncio.run(calls_per_drained(url))
            times = [asyncio.run(time_per_drained(url, options.count)) for _ in range(options.rounds)]
            cpu, elapsed = [each.cpu for each in times], [each.elapsed for each in times]
            print(
                f"{store:8}  {enqueue.python:6.1f}   {enqueue.c:6.1f}        {drain.python:6.2f}   {drain.c:6.2f}"
                f"               {min(cpu):6.2f}   {statistics.median(cpu):6.2f}   {min(elapsed):9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
