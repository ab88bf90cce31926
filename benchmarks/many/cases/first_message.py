"""How long the first message of a quiet tenant waits, from the call of `enqueue` to the call of the handler."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from statistics import median

from benchmarks.common.environment import stderr
from benchmarks.common.report import Section
from benchmarks.many.cases.idle import POSTGRES, SQLITE, looked_at_all
from benchmarks.many.environment import Environment, Measured, at_most, percentile
from benchmarks.many.process import Process, apart
from benchmarks.many.stores import Urls, postgres_databases, sqlite_files
from benchmarks.rounds import Case
from postroom import Message, Postroom
from postroom._room.options import RoomOptions
from postroom.sync import Postroom as SyncPostroom

SAME, SCRIPT, ROOM, HUB = "the same process", "a script with one store", "a room with many stores", "a room with a hub"
QUIET_SECONDS = 12.0
"""After this time, a store that was used is closed."""
SPACING_SECONDS = 0.05
"""The pause between two puts."""


def first_message(env: Environment) -> Measured:
    plan = env.plan
    found: dict[str, dict[str, list[float]]] = {}
    with sqlite_files(plan.databases) as files, postgres_databases(env.server, plan.databases) as databases:
        for sender in (SAME, SCRIPT, ROOM, HUB):
            if sender == HUB and "hub" not in RoomOptions.__annotations__:
                env.notes.append("first message: a room has no hub yet")
                continue
            for engine, urls in ((SQLITE, files), (POSTGRES, databases)):
                stderr.print(f"  {engine}, {sender}")
                hub = env.server.url() if sender == HUB else None
                found.setdefault(engine, {})[sender] = apart(_measure, urls, sender, plan.first_messages, hub)
    cases = [
        Case(f"{name}, put by {sender}", {engine: [figure(found[engine][sender])] for engine in found})
        for sender in found[SQLITE]
        for name, figure in (("p50", median), ("p99", lambda samples: percentile(samples, 99)), ("longest", max))
    ]
    aims = []
    for engine, by_sender in found.items():
        for sender in (SCRIPT, ROOM):
            samples = by_sender[sender]
            aims.append(at_most(2000, median(samples), f"first message, put by {sender}: p50 in ms, {engine}"))
            aims.append(at_most(12_000, max(samples), f"first message, put by {sender}: longest in ms, {engine}"))
        if HUB in by_sender:
            p99 = percentile(by_sender[HUB], 99)
            aims.append(at_most(50, p99, f"first message, put by {HUB}: p99 in ms, {engine}"))
    title = f"first message in one of {plan.databases} quiet stores, {plan.first_messages} messages"
    return Measured(Section(title, cases, "ms"), aims)


def _measure(urls: Urls, sender: str, count: int, hub: str | None) -> list[float]:
    return asyncio.run(_measure_async(urls, sender, count, hub))


async def _measure_async(urls: Urls, sender: str, count: int, hub: str | None) -> list[float]:
    """Returns milliseconds. Puts into each store once, and again when all are quiet."""
    room = Postroom(stores=urls, **({} if hub is None else {"hub": hub}))  # type: ignore[arg-type]
    samples: list[float] = []
    handled = asyncio.Event()

    @room.outbox(concurrency=10).handler("m")
    async def handle(message: Message[float]) -> None:
        samples.append(1000 * (time.monotonic() - message.payload))
        handled.set()

    async with room:
        await looked_at_all(room, len(urls))
        with Process(_SENDERS.get(sender, _put_from_scripts), urls, hub) as process:
            while len(samples) < count:
                await asyncio.sleep(QUIET_SECONDS)
                keys = list(urls)[: count - len(samples)]
                wanted = len(samples) + len(keys)
                if sender == SAME:
                    for key in keys:
                        await room.router.outbox(key).enqueue("m", time.monotonic())
                        await asyncio.sleep(SPACING_SECONDS)
                else:
                    await asyncio.to_thread(process.ask, keys)
                async with asyncio.timeout(200):
                    while len(samples) < wanted:
                        handled.clear()
                        await handled.wait()
    return samples


def _put_from_scripts(pipe: Connection, urls: Urls, _hub: str | None) -> None:
    """Opens a store for each put, and closes it."""
    while keys := pipe.recv():
        for key in keys:
            with SyncPostroom(urls[key]) as room:
                room.outbox().enqueue("m", time.monotonic())
            time.sleep(SPACING_SECONDS)
        pipe.send(None)


def _put_from_room(pipe: Connection, urls: Urls, hub: str | None) -> None:
    """Puts from a room over all stores, which has no handlers."""
    asyncio.run(_put_from_room_async(pipe, urls, hub))


async def _put_from_room_async(pipe: Connection, urls: Urls, hub: str | None) -> None:
    room = Postroom(stores=urls, **({} if hub is None else {"hub": hub}))  # type: ignore[arg-type]
    async with room:
        while keys := await asyncio.to_thread(pipe.recv):
            for key in keys:
                await room.router.outbox(key).enqueue("m", time.monotonic())
                await asyncio.sleep(SPACING_SECONDS)
            pipe.send(None)


_SENDERS = {SCRIPT: _put_from_scripts, ROOM: _put_from_room, HUB: _put_from_room}
