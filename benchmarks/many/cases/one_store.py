"""A room with one tenant beside a room with one store."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.common.environment import stderr
from benchmarks.common.report import Section
from benchmarks.many.cases.idle import POSTGRES, SQLITE
from benchmarks.many.environment import Environment, Measured
from benchmarks.many.process import apart
from benchmarks.many.stores import postgres_databases, sqlite_files
from benchmarks.rounds import Case
from benchmarks.table import at_least
from postroom import Message, NewMessage, Postroom

PLAIN, TENANT = "one store", "one tenant"
MESSAGES = 5000


def one_store(env: Environment) -> Measured:
    rounds = env.plan.one_store_rounds
    cases = []
    for engine in (SQLITE, POSTGRES):
        stderr.print(f"  {engine}")
        with sqlite_files(1) if engine == SQLITE else postgres_databases(env.server, 1) as urls:
            (url,) = urls.values()
            rates, cpu = apart(_measure, url, rounds)
        cases += [Case(f"messages/s, {engine}", rates), Case(f"messages per processor second, {engine}", cpu)]
    aims = [at_least(0.7, median(case.ratios(TENANT, PLAIN)), f"one tenant / one store, {case.name}") for case in cases]
    title = f"drain of {MESSAGES} messages in batches of 100, {rounds} rounds"
    return Measured(Section(title, cases, "see the row", ((TENANT, PLAIN),)), aims)


def _measure(url: str, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    rates: dict[str, list[float]] = {PLAIN: [], TENANT: []}
    cpu: dict[str, list[float]] = {PLAIN: [], TENANT: []}
    for number in range(rounds + 1):
        for name in rates if number % 2 else reversed(rates):
            rate, per_cpu_second = asyncio.run(_rates(url, name))
            if number:  # the first round imports modules and warms caches
                rates[name].append(rate)
                cpu[name].append(per_cpu_second)
    return rates, cpu


async def _rates(url: str, name: str) -> tuple[float, float]:
    """Returns the messages per second of time and of processor time, from the start of the room on."""
    async with Postroom(url) as filling:
        for _ in range(0, MESSAGES, 1000):
            await filling.outbox().enqueue_many([NewMessage("m", {})] * 1000)
    room = Postroom(url) if name == PLAIN else Postroom(stores={"a": url})
    handled, all_handled = 0, asyncio.Event()

    @room.outbox(batch_size=100, concurrency=4).handler("m")
    async def handle(_message: Message) -> None:
        nonlocal handled
        handled += 1
        if handled == MESSAGES:
            all_handled.set()

    started, started_cpu = time.perf_counter(), time.process_time()
    async with room:
        await asyncio.wait_for(all_handled.wait(), 300)
        return MESSAGES / (time.perf_counter() - started), MESSAGES / (time.process_time() - started_cpu)
