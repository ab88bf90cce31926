"""The measurements of `postroom bench`: each is what a user of the public API sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import quantiles
from typing import NamedTuple
from uuid import uuid4

from postroom import Event, Inbox, NewMessage, Observer, Outbox, OwnerToken, Postroom, State
from postroom._kernel.message import AnyMessage

TOPIC = "bench"
PAYLOAD = {
    "order": "0000000001",
    "customer": "c-0001",
    "amount": 1999,
    "currency": "EUR",
    "note": "leave it with the neighbour",
}


class Plan(NamedTuple):
    """What to measure, and how much of it."""

    url: str
    prefix: str
    messages: int
    batch: int
    samples: int
    idle_seconds: float
    make: bool
    """Whether the database is ours, without tables yet."""


@dataclass
class Measured:
    """What came out."""

    store: str
    given: bool
    """Whether the user named the database."""
    messages: int
    batch: int
    samples: int
    idle_seconds: float
    enqueue_single_per_second: float = 0.0
    enqueue_bulk_per_second: float = 0.0
    drain_single_per_second: float = 0.0
    drain_batch_per_second: float = 0.0
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    idle_calls_per_second: float = 0.0


class Watch:
    """An observer: counts calls of the store, and sets an event when outcomes are settled."""

    def __init__(self) -> None:
        self.calls = 0
        self.settled = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.calls += 1
        if event.verb == "settle":
            self.settled.set()


async def measure(plan: Plan, emit: Callable[[str], object]) -> Measured:
    """Runs all measurements, in boxes with names that no other program uses. They are empty afterwards."""
    async with room_of(plan) as room:
        measured = Measured(room.store.name, not plan.make, plan.messages, plan.batch, plan.samples, plan.idle_seconds)
        await throughput(room, plan, measured, emit)
    watch = Watch()
    async with room_of(plan, watch) as room:
        await idleness(room, watch, plan, measured, emit)
    return measured


@asynccontextmanager
async def room_of(plan: Plan, *observers: Observer) -> AsyncIterator[Postroom]:
    room = Postroom(plan.url, prefix=plan.prefix, observers=observers)
    try:
        if plan.make:
            await room.migrate()
        yield room
    finally:
        try:
            await room.stop()
            for box in room.boxes:
                await empty(box)
        finally:
            await room.close()


async def empty(box: Inbox | Outbox) -> None:
    """Settle what an interruption has left, and delete everything."""
    owner = OwnerToken.new()
    while left := await box.claim(owner, batch_size=1000):
        await box.ack(owner, left)
    await box.purge(State.DONE, older_than=timedelta())


def box_of(room: Postroom, plan: Plan) -> Inbox:
    """A box with a name that no other program uses."""
    return room.inbox(f"bench-{uuid4().hex}", batch_size=plan.batch)


async def throughput(room: Postroom, plan: Plan, measured: Measured, emit: Callable[[str], object]) -> None:
    async def rate(what: str, work: Awaitable[object]) -> float:
        emit(what)
        started = time.perf_counter()
        await work
        return round(plan.messages / (time.perf_counter() - started), 1)

    probe, single, batches = Probe(), box_of(room, plan), box_of(room, plan)
    single.handler(TOPIC)(probe.handle)
    batches.handler(TOPIC, batch=plan.batch)(probe.handle_many)
    measured.enqueue_single_per_second = await rate("enqueue, one by one", enqueue_single(single, plan.messages))
    measured.drain_single_per_second = await rate("drain, one by one", room.drain())
    measured.enqueue_bulk_per_second = await rate("enqueue in bulk", enqueue_bulk(batches, plan.messages, plan.batch))
    measured.drain_batch_per_second = await rate("drain in batches", room.drain())


async def idleness(room: Postroom, watch: Watch, plan: Plan, measured: Measured, emit: Callable[[str], object]) -> None:
    """What it is like when there is nothing to do, for one box."""
    probe, box = Probe(), box_of(room, plan)
    box.handler(TOPIC)(probe.handle)
    await room.start()
    emit("latency when idle")
    took = sorted([await latency(box, probe, watch) for _ in range(plan.samples)])
    measured.latency_p50_ms, measured.latency_p99_ms = (round(percentile(took, n) * 1000, 3) for n in (50, 99))
    emit(f"idling for {plan.idle_seconds:g} s")
    before = watch.calls
    await asyncio.sleep(plan.idle_seconds)
    measured.idle_calls_per_second = round((watch.calls - before) / plan.idle_seconds, 3)


async def enqueue_single(box: Inbox, count: int) -> None:
    for number in range(count):
        await box.enqueue(TOPIC, PAYLOAD, source="bench", message_id=str(number))


async def enqueue_bulk(box: Inbox, count: int, batch: int) -> None:
    for start in range(0, count, batch):
        numbers = range(start, min(start + batch, count))
        await box.enqueue_many(
            [NewMessage(TOPIC, PAYLOAD, source="bench", message_id=str(number)) for number in numbers]
        )


class Probe:
    """Handlers that do nothing but note when they were called."""

    def __init__(self) -> None:
        self.called_at = 0.0

    async def handle(self, _: AnyMessage) -> None:
        self.called_at = time.perf_counter()

    async def handle_many(self, _: list[AnyMessage]) -> None:
        self.called_at = time.perf_counter()


async def latency(box: Inbox, probe: Probe, watch: Watch) -> float:
    """Seconds from the call of enqueue, its commit included, to the start of the handler in the same process."""
    watch.settled.clear()
    started = time.perf_counter()
    await box.enqueue(TOPIC, PAYLOAD, source="bench", message_id=uuid4().hex)
    await watch.settled.wait()  # so the worker is idle again when the next one comes
    return probe.called_at - started


def percentile(values: list[float], number: int) -> float:
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[number - 1]
