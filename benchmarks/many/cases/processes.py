"""Several processes: connections of each, and how long the stores of a killed process wait for another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from statistics import mean, median
from threading import Event, Thread

import psycopg

from benchmarks.common.environment import stderr
from benchmarks.common.report import Section
from benchmarks.many.environment import Environment, Measured, at_most
from benchmarks.many.process import Process
from benchmarks.many.stores import Urls, postgres_databases
from benchmarks.rounds import Case
from benchmarks.table import Aim
from postroom import Message, Postroom
from postroom._many import store_schedule
from postroom.sync import Postroom as SyncPostroom

LEASE_SECONDS = 60.0
"""In place of four minutes, so that the stores are shared sooner."""
BY_NAME = "SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1"
ONE, TWO = "worker1", "worker2"


def processes(env: Environment) -> Measured:
    count = min(env.plan.databases, 40)
    with postgres_databases(env.server, count) as urls, Process(serve, urls, ONE, LEASE_SECONDS) as first:
        first.receive()
        with _puts(urls):
            stderr.print("  one process")
            alone = _connections(env, 10)
            with Process(serve, urls, TWO, LEASE_SECONDS) as second:
                second.receive()
                stderr.print("  two processes")
                time.sleep(LEASE_SECONDS + store_schedule.HANDOVER_SECONDS + 5)
                shared = _connections(env, 10)
                first.kill()
                waits = waits_of_each(urls, second)
    cases = [
        Case("connections, one process", {"first": [alone[ONE]]}),
        Case("connections, two processes", {"first": [shared[ONE]], "second": [shared[TWO]]}),
        Case("first killed: p50 of the wait, s", {"second": [median(waits)]}),
        Case("first killed: longest wait, s", {"second": [max(waits)]}),
    ]
    aims: list[Aim] = [
        at_most(0.8, shared[ONE] / alone[ONE], "processes: connections of the first with a second / alone"),
        at_most(10, max(waits), "processes: longest wait in seconds after the other was killed"),
    ]
    title = f"{count} PostgreSQL databases with a message in each second; soft leases of {LEASE_SECONDS:g} s"
    return Measured(Section(title, cases, "see the row"), aims)


def serve(pipe: Connection, urls: Urls, name: str, lease: float) -> None:
    """Runs a room until the pipe is closed. Sends None when it has started, then the topic and store of each message
    of the topic `now` that it handles."""
    store_schedule.LEASE = timedelta(seconds=lease)
    asyncio.run(_serve(pipe, {key: named(url, name) for key, url in urls.items()}))


def named(url: str, name: str) -> str:
    """Returns the URL with an application_name, if it is one of PostgreSQL."""
    return f"{url}?application_name={name}" if url.startswith("postgresql") else url


async def _serve(pipe: Connection, urls: Urls) -> None:
    room = Postroom(stores=urls)

    @room.outbox(concurrency=10).handler("load")
    async def ignore(_message: Message) -> None:
        pass

    @room.outbox().handler("now")
    async def report(message: Message) -> None:
        pipe.send(message.store)

    async with room:
        pipe.send(None)
        await asyncio.to_thread(pipe.recv)  # raises EOFError when the parent has closed the pipe


@contextmanager
def _puts(urls: Urls) -> Iterator[None]:
    """Puts a message into each store, once in a second."""
    ended = Event()

    def put() -> None:
        with SyncPostroom(stores={key: named(url, "load") for key, url in urls.items()}) as room:
            while not ended.is_set():
                for key in urls:
                    room.router.outbox(key).enqueue("load", {})
                    if ended.wait(1 / len(urls)):
                        return

    thread = Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _connections(env: Environment, seconds: float) -> dict[str, float]:
    """Returns the mean number of connections by application_name."""
    seen: dict[str, list[int]] = {ONE: [], TWO: []}
    with psycopg.connect(env.server.url(), autocommit=True) as session:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found: dict[str, int] = dict(session.execute(BY_NAME.encode()).fetchall())
            for name, counts in seen.items():
                counts.append(found.get(name, 0))
            time.sleep(0.2)
    return {name: mean(counts) for name, counts in seen.items()}


def waits_of_each(urls: Urls, worker: Process) -> list[float]:
    """Puts a message into each store. Returns after how many seconds the worker has handled each."""
    started: dict[str, float] = {}
    for key, url in urls.items():
        with SyncPostroom(url) as room:
            room.outbox().enqueue("now", {})
        started[key] = time.monotonic()
    waits: dict[str, float] = {}
    while len(waits) < len(urls):
        key = worker.receive(120)
        waits[key] = time.monotonic() - started[key]
    return list(waits.values())
