"""A tenth of the stores is unreachable: how many messages of the others are handled in a second."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count as count_from
from itertools import cycle
from statistics import median

from tools.servers.base import HOST, free_port

from benchmarks.common.environment import stderr
from benchmarks.common.report import Section
from benchmarks.many.cases.idle import POSTGRES, SQLITE
from benchmarks.many.environment import Environment, Measured
from benchmarks.many.process import apart
from benchmarks.many.stores import Urls, postgres_databases, sqlite_files
from benchmarks.rounds import Case
from benchmarks.table import at_least
from postroom import Message, NewMessage, Postroom

REACHABLE, SOME_UNREACHABLE = "all reachable", "a tenth unreachable"
STORES = 90
MESSAGES = 100
"""Messages of each store in a run."""


def unreachable(env: Environment) -> Measured:
    rounds = env.plan.unreachable_rounds
    cases = []
    for engine in (SQLITE, POSTGRES):
        stderr.print(f"  {engine}")
        count = STORES if engine == SQLITE else min(STORES, env.plan.databases)
        stores = sqlite_files(count) if engine == SQLITE else postgres_databases(env.server, count)
        server = None if engine == SQLITE else env.server.url("no_such_database")
        with stores as urls, unreachable_stores(count // 9, server) as others:
            cases.append(Case(engine, apart(_measure, urls, others, rounds)))
    aims = [
        at_least(
            0.95,
            median(case.ratios(SOME_UNREACHABLE, REACHABLE)),
            f"unreachable stores: rate of the others, {case.name}",
        )
        for case in cases
    ]
    title = f"{STORES} stores with {MESSAGES} messages each, and {STORES // 9} that cannot be reached, {rounds} rounds"
    return Measured(Section(title, cases, "messages/s", ((SOME_UNREACHABLE, REACHABLE),)), aims)


@contextmanager
def unreachable_stores(count: int, missing_database: str | None = None) -> Iterator[Urls]:
    """Yields stores that cannot be reached, each in another way.

    A port that accepts and never responds, a port that refuses, a file in a folder that does not exist, and, if it is
    given, a database that does not exist on a server that does.
    """
    with ExitStack() as stack:

        def silent() -> str:
            listener = stack.enter_context(socket.socket())
            listener.bind((HOST, 0))
            listener.listen(128)  # the system accepts; the program never reads
            return f"postgresql://postgres@{HOST}:{listener.getsockname()[1]}/db"

        names = count_from(1)
        kinds: list[Callable[[], str]] = [
            silent,
            lambda: f"postgresql://postgres@{HOST}:{free_port()}/db",
            lambda: f"sqlite:////no/such/folder/store{next(names)}.db",
        ]
        if missing_database is not None:
            kinds.append(lambda: f"{missing_database}{next(names)}")
        yield {f"bad{number}": make() for number, make in zip(range(count), cycle(kinds), strict=False)}


def _measure(urls: Urls, others: Urls, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {REACHABLE: [], SOME_UNREACHABLE: []}
    for number in range(rounds + 1):
        for name in found if number % 2 else reversed(found):
            rate = asyncio.run(_rate(urls, {} if name == REACHABLE else others))
            if number:  # the first round imports modules and warms caches
                found[name].append(rate)
    return found


async def _rate(urls: Urls, others: Urls) -> float:
    """Fills all stores, then starts a room over them and others. Returns messages per second from the start on."""
    async with asyncio.TaskGroup() as group:
        limit = asyncio.Semaphore(8)
        for url in urls.values():
            group.create_task(_fill(url, limit))
    # The unreachable stores are spread among the others.
    stores = dict(sorted({**urls, **others}.items(), key=lambda item: hash(item[0][::-1])))
    room = Postroom(stores=stores)
    wanted, handled, all_handled = len(urls) * MESSAGES, 0, asyncio.Event()

    @room.outbox(concurrency=10).handler("m")
    async def handle(_message: Message) -> None:
        nonlocal handled
        handled += 1
        if handled == wanted:
            all_handled.set()

    started = time.perf_counter()
    await room.start()
    try:
        await asyncio.wait_for(all_handled.wait(), 300)
        return wanted / (time.perf_counter() - started)
    finally:
        await room.close()


async def _fill(url: str, limit: asyncio.Semaphore) -> None:
    async with limit:
        room = Postroom(url)
        await room.outbox().enqueue_many([NewMessage("m", {})] * MESSAGES)
        await room.close()
