"""Prints what joins cost: drains of steps beside drains of plain messages, and the time from the last ack to the
continuation.

    python -m benchmarks.joins [--stores memory,sqlite,postgres,redis] [--count 20000] [--rounds 3]

Each round fills an outbox and drains it in batches of 500 with an empty handler: plain messages, steps of joins with 50
steps each, and steps of one join. The cases of a round follow each other, so their ratio hardly depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID, uuid4

from benchmarks.python_cost import urls
from postroom import Message, NewMessage, Outbox, Postroom

BATCH = 500
STEPS = 50
"""Steps of each join in the case of many joins."""
LATENCIES = 200
"""Joins whose time from the last ack to the continuation is measured."""


@asynccontextmanager
async def _outbox(url: str) -> AsyncIterator[tuple[Postroom, Outbox]]:
    """Opens a new outbox. Deletes its messages and joins at the end."""
    room = Postroom(url)
    if not url.startswith(("memory", "redis")):
        await room.migrate()
    outbox = room.outbox(f"joins-{uuid4().hex[:8]}", batch_size=BATCH)
    try:
        yield room, outbox
    finally:
        while await outbox.purge("done", older_than=timedelta(0)):
            pass
        await room.close()


async def _put(outbox: Outbox, count: int, join: UUID | None) -> None:
    for start in range(0, count, 1000):
        new = [NewMessage("step", {"n": n}) for n in range(start, min(start + 1000, count))]
        await outbox.enqueue_many(new, join=join)


async def drain(url: str, count: int, joins: int) -> float:
    """Returns the messages per second of a drain of steps of so many joins; 0: of plain messages."""
    async with _outbox(url) as (room, outbox):
        sent: list[str] = []

        @outbox.handler("step")
        async def step(_message: Message) -> None:
            pass

        @outbox.handler("all.done")
        async def all_done(message: Message) -> None:
            sent.append(message.message_id)

        for _ in range(joins):
            join = await outbox.start_join("bench", count // joins)
            await outbox.enqueue_join_wait(join, on_complete_topic="all.done")
            await _put(outbox, count // joins, join)
        if not joins:
            await _put(outbox, count, None)
        started = time.perf_counter()
        await room.drain()
        seconds = time.perf_counter() - started
        if len(set(sent)) != joins or len(sent) != joins:
            raise RuntimeError(f"{len(sent)} continuations of {joins} joins were handled")
        return count / seconds


async def latencies(url: str) -> list[float]:
    """Returns the milliseconds from the end of the last handler of a join to the handler of its continuation."""
    async with _outbox(url) as (room, outbox):
        ended, handled = 0.0, asyncio.Event()
        found: list[float] = []

        @outbox.handler("step")
        async def step(_message: Message) -> None:
            nonlocal ended
            ended = time.perf_counter()

        @outbox.handler("all.done")
        async def all_done(_message: Message) -> None:
            found.append((time.perf_counter() - ended) * 1000)
            handled.set()

        await room.start()
        for _ in range(LATENCIES):
            handled.clear()
            join = await outbox.start_join("bench", 3)
            await outbox.enqueue_join_wait(join, on_complete_topic="all.done")
            await _put(outbox, 3, join)
            await asyncio.wait_for(handled.wait(), 30)
        await room.stop()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="memory,sqlite,postgres,redis")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("store      plain/s   joins of 50   one join   last ack to continuation, ms: p50     p99")
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory() as folder:
            url = urls(folder)[store]
            rates: list[tuple[float, float, float]] = []
            for _ in range(options.rounds):
                plain = asyncio.run(drain(url, options.count, 0))
                many = asyncio.run(drain(url, options.count, options.count // STEPS))
                one = asyncio.run(drain(url, options.count, 1))
                rates.append((plain, many / plain, one / plain))
            plain, many, one = map(statistics.median, zip(*rates, strict=True))
            times = sorted(asyncio.run(latencies(url)))
            p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            print(f"{store:8} {plain:9,.0f} {many:13.2f} {one:10.2f} {p50:38.1f} {p99:7.1f}", flush=True)


if __name__ == "__main__":
    main()
