"""A noisy tenant beside quiet ones: how long their messages wait, compared with a room without the noisy one."""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks.common.environment import stderr
from benchmarks.common.report import Section
from benchmarks.many.cases.idle import POSTGRES, SQLITE, looked_at_all
from benchmarks.many.environment import Environment, Measured, at_most, percentile
from benchmarks.many.process import apart
from benchmarks.many.stores import Urls, postgres_databases, sqlite_files
from benchmarks.rounds import Case
from postroom import Message, NewMessage, Postroom, State

ALONE = "alone"
SELECTIONS = ("fair", "round-robin", "drain-first")
QUIET = 20
"""Quiet stores. Each gets about one message in a second."""
NOISY = 2500
"""Messages of the noisy store for each second: more than handlers can do."""
HANDLER_SECONDS = 0.005
CONCURRENCY = 10


def skew(env: Environment) -> Measured:
    seconds = env.plan.skew_seconds
    found: dict[str, dict[str, list[float]]] = {}
    for engine in (SQLITE, POSTGRES):
        for selection in (ALONE, *SELECTIONS):
            stderr.print(f"  {engine}, {selection}")
            stores = sqlite_files(QUIET + 1) if engine == SQLITE else postgres_databases(env.server, QUIET + 1)
            with stores as urls:
                found.setdefault(engine, {})[selection] = apart(_measure, urls, selection, seconds)
    cases = [
        Case(
            f"p{percent}, {engine}",
            {selection: [percentile(samples, percent)] for selection, samples in found[engine].items()},
        )
        for engine in found
        for percent in (50, 99)
    ]
    ratios = tuple((selection, ALONE) for selection in SELECTIONS)
    aims = [
        at_most(2, percentile(by["fair"], 99) / percentile(by[ALONE], 99), f"skew: p99, fair / alone, {engine}")
        for engine, by in found.items()
    ]
    title = (
        f"one message a second in each of {QUIET} quiet stores, beside a store in which more than 1,000 wait for "
        f"each of them; handlers take {1000 * HANDLER_SECONDS:g} ms, {CONCURRENCY} at a time"
    )
    return Measured(Section(title, cases, "ms", ratios), aims)


def _measure(urls: Urls, selection: str, seconds: float) -> list[float]:
    return asyncio.run(_measure_async(urls, selection, seconds))


async def _measure_async(urls: Urls, selection: str, seconds: float) -> list[float]:
    """Returns how many milliseconds the messages of quiet stores waited."""
    noisy, *quiet = urls
    room = Postroom(stores=urls, selection="fair" if selection == ALONE else selection)
    samples: list[float] = []

    @room.outbox(concurrency=CONCURRENCY).handler("m")
    async def handle(message: Message[float]) -> None:
        if message.store != noisy:
            samples.append(1000 * (time.monotonic() - message.payload))
        await asyncio.sleep(HANDLER_SECONDS)

    if selection != ALONE:
        await _fill(room, noisy, int(NOISY * seconds))
    async with room:
        await looked_at_all(room, len(urls)) if selection == ALONE else await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            for key in quiet:
                group.create_task(_put(room, key, int(seconds)))
        async with asyncio.timeout(60):
            while len(samples) < int(seconds) * len(quiet):  # noqa: ASYNC110 - at the end, not measured
                await asyncio.sleep(0.05)
        if selection != ALONE and not (await room.router.outbox(noisy).counts())[State.WAITING]:
            raise RuntimeError("the noisy store had too few messages")
    return samples


async def _fill(room: Postroom, key: str, count: int) -> None:
    for _ in range(0, count, 1000):
        await room.router.outbox(key).enqueue_many([NewMessage("m", 0.0)] * 1000)


async def _put(room: Postroom, key: str, count: int) -> None:
    outbox = room.router.outbox(key)
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.5, 1.5))
        await outbox.enqueue("m", time.monotonic())
