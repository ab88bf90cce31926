"""Scenes that a benchmark measures and a test checks: stores come and go, a server stops and starts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from tools.servers.base import Server

from benchmarks.many.ledger import Ledger
from benchmarks.many.stores import Urls
from postroom import Postroom


@asynccontextmanager
async def load(ledger: Ledger, room: Postroom, keys: Callable[[], list[str]], tasks: int) -> AsyncIterator[None]:
    """Puts messages from so many tasks."""
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(ledger.keep_putting(room, keys, ended))
        try:
            yield
        finally:
            ended.set()


async def replace_stores(ledger: Ledger, changes: int, *, between: int) -> float:
    """Replaces one of the stores of a room again and again, under load. Half of the stores are in the room.

    Between two changes, `between` messages are handled. Returns the messages per second.
    """
    keys = list(ledger.urls)
    active, others = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    room = Postroom(discover=lambda: {key: ledger.urls[key] for key in active}, refresh=timedelta(hours=1))
    ledger.register(room)
    async with room, load(ledger, room, lambda: active, 4):
        await ledger.wait_for_any(between)
        started, before = time.perf_counter(), ledger.handled.total()
        for _ in range(changes):
            added, removed = (each.pop(random.randrange(len(each))) for each in (others, active))
            active.append(added)
            others.append(removed)
            await room.refresh()
            await ledger.wait_for_any(between)
        return (ledger.handled.total() - before) / (time.perf_counter() - started)


@dataclass(frozen=True)
class Outage:
    """What a stop of a server did."""

    before: float
    """Messages per second of the other stores, before it."""
    during: float
    """The same while the server was stopped."""
    recovered_seconds: float
    """From the start of the server until each of its stores has handled a message again."""


async def stop_and_start(ledger: Ledger, server: Server, on_server: Urls, *, messages: int) -> Outage:
    """Stops a server while messages are put into its stores and into others, and starts it again.

    Before the stop and before the start, so many messages of the other stores are handled.
    """
    others = [key for key in ledger.urls if key not in on_server]
    room = Postroom(stores=ledger.urls)
    ledger.register(room)

    async def rate() -> float:
        started, before = time.perf_counter(), sum(ledger.handled[key] for key in others)
        await ledger.wait_for(others, messages // len(others))
        return (sum(ledger.handled[key] for key in others) - before) / (time.perf_counter() - started)

    async with room, load(ledger, room, lambda: others, 3), load(ledger, room, lambda: list(on_server), 1):
        await ledger.wait_for(ledger.urls, 1)
        before = await rate()
        await asyncio.to_thread(server.stop)
        during = await rate()
        await asyncio.to_thread(server.start)
        started = time.perf_counter()
        await ledger.wait_for(on_server, 1)
        return Outage(before, during, time.perf_counter() - started)
