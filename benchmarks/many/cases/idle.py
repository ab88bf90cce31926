"""What idle stores cost: statements, memory, connections and processor time."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize
from typing import Any, Self

import psycopg

from benchmarks.common.report import Section
from benchmarks.many.environment import Environment, Measured, at_most
from benchmarks.many.process import apart
from benchmarks.many.stores import Urls, postgres_databases, sqlite_files
from benchmarks.rounds import Case
from benchmarks.table import Aim
from postroom import Message, Postroom

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
BENCHMARK = "benchmark"
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'benchmark'
"""
STATEMENT = re.compile(rb" LOG:  (?:statement|execute [^:]*): ")


@dataclass(frozen=True)
class Idle:
    """Figures of a process whose stores are idle."""

    looked_seconds: float
    """Until each store was looked at once."""
    first_cpu: float
    """Processor seconds until then."""
    kilobytes: float
    """Memory of the process, for each store."""
    cpu: float
    """Processor seconds in a second."""
    statements: float
    """Statements in a second, for each store. Only of SQLite, without the next figure."""
    control: float
    """Of SQLite: PRAGMA, BEGIN and COMMIT in a second, for each store."""
    looks: int


def idle(env: Environment) -> Measured:
    """Runs both engines at the same time: they have nothing to do."""
    plan = env.plan
    with (
        sqlite_files(plan.files) as files,
        postgres_databases(env.server, plan.databases) as databases,
        ThreadPoolExecutor() as threads,
    ):
        env.server.query("ALTER SYSTEM SET log_statement = 'all'")
        env.server.query("SELECT pg_reload_conf()")
        on_sqlite = threads.submit(apart, _measure, files, plan.idle_seconds, False)
        with _Connections(env) as connections:
            on_postgres = apart(_measure, databases, plan.idle_seconds, True)
        statements = _logged_statements(env) / plan.idle_seconds / len(databases)
        env.server.query("ALTER SYSTEM RESET log_statement")
        env.server.query("SELECT pg_reload_conf()")
        found = {SQLITE: on_sqlite.result(), POSTGRES: on_postgres}
        allocated = {SQLITE: apart(_allocated, files), POSTGRES: apart(_allocated, databases)}
    per_store = {SQLITE: found[SQLITE].statements, POSTGRES: statements}

    def case(name: str, figure: Callable[[Idle], float]) -> Case:
        return Case(name, {engine: [figure(each)] for engine, each in found.items()})

    cases = [
        case("seconds until each store was looked at once", lambda each: each.looked_seconds),
        case("processor seconds until then", lambda each: each.first_cpu),
        Case("statements in a second, per store", {engine: [value] for engine, value in per_store.items()}),
        Case("besides: PRAGMA, BEGIN and COMMIT", {SQLITE: [found[SQLITE].control]}),
        case("looks in this time", lambda each: float(each.looks)),
        case("processor seconds in a second, all stores", lambda each: each.cpu),
        case("KB per store, of the process", lambda each: each.kilobytes),
        Case("KB per store, allocated by Python", {engine: [value] for engine, value in allocated.items()}),
        Case("connections to the server, most", {POSTGRES: [float(max(connections.seen))]}),
        Case("connections to the server, mean", {POSTGRES: [sum(connections.seen) / len(connections.seen)]}),
    ]
    aims: list[Aim] = [at_most(2, max(connections.seen), "idle: connections to a PostgreSQL server")]
    for engine, figures in found.items():
        aims.append(at_most(0.02, per_store[engine], f"idle: statements in a second per store, {engine}"))
        aims.append(at_most(30, figures.kilobytes, f"idle: KB per store, {engine}"))
    title = f"idle: {plan.files} SQLite files, {plan.databases} PostgreSQL databases, {plan.idle_seconds:g} s"
    return Measured(Section(title, cases, "see the row"), aims)


class _Connections:
    """Counts the connections to the server, twice in a second, from a mark in its log on."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.seen: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        with psycopg.connect(self._env.server.url(), autocommit=True, application_name=BENCHMARK) as connection:
            connection.execute("SET log_statement = 'none'")
            while not self._ended.wait(0.5):
                self.seen += [connected for (connected,) in connection.execute(CONNECTIONS.encode())]


BEGIN, END = b"the idle time begins", b"the idle time ends"


def _logged_statements(env: Environment) -> int:
    log = env.server.log.read_bytes()
    return len(STATEMENT.findall(log[log.rindex(BEGIN) : log.rindex(END)])) - 1  # the mark itself


def _mark(urls: Urls, text: bytes) -> None:
    with psycopg.connect(next(iter(urls.values())), autocommit=True, application_name=BENCHMARK) as connection:
        connection.execute(b"SELECT '" + text + b"'")


def _measure(urls: Urls, seconds: float, marks: bool) -> Idle:
    return asyncio.run(_measure_idle(urls, seconds, marks, _count_sqlite_statements()))


def _count_sqlite_statements() -> Counter[bool]:
    """Returns a counter of statements, by whether they control a connection or a transaction."""
    counter: Counter[bool] = Counter()
    connect = sqlite3.connect

    def counting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda text: counter.update([text.startswith(("PRAGMA", "BEGIN", "COMMIT"))]))
        return connection

    sqlite3.connect = counting  # type: ignore[assignment]
    return counter


def room_of(urls: Urls, **options: object) -> Postroom:
    room = Postroom(stores=urls, **options)  # type: ignore[arg-type]

    @room.outbox().handler("m")
    async def handle(_message: Message) -> None:
        pass

    return room


async def _measure_idle(urls: Urls, seconds: float, marks: bool, statements: Counter[bool]) -> Idle:
    await _run_once(dict(list(urls.items())[:3]))  # imports everything
    gc.collect()
    before, began, began_cpu = _resident(), time.perf_counter(), time.process_time()
    room = room_of(urls)
    async with room:
        await looked_at_all(room, len(urls))
        looked, looked_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        await asyncio.sleep(12)  # longer than a store stays open
        if marks:
            await asyncio.to_thread(_mark, urls, BEGIN)
        looks, first, first_cpu = looks_of(room), statements.copy(), time.process_time()
        started = time.perf_counter()
        await asyncio.sleep(seconds)
        passed, cpu = time.perf_counter() - started, time.process_time() - first_cpu
        executed = statements - first
        if marks:
            await asyncio.to_thread(_mark, urls, END)
        gc.collect()
        resident = _resident()
        return Idle(
            looked_seconds=looked,
            first_cpu=looked_cpu,
            kilobytes=(resident - before) / 1000 / len(urls),
            cpu=cpu / passed,
            statements=executed[False] / passed / len(urls),
            control=executed[True] / passed / len(urls),
            looks=looks_of(room) - looks,
        )


def _allocated(urls: Urls) -> float:
    return asyncio.run(_measure_allocated(urls))


async def _measure_allocated(urls: Urls) -> float:
    """Returns the KB that Python has allocated for each store, after each was looked at."""
    await _run_once(dict(list(urls.items())[:3]))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with room_of(urls) as room:
        await looked_at_all(room, len(urls))
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / 1000 / len(urls)


async def _run_once(urls: Urls) -> None:
    async with room_of(urls) as room:
        await looked_at_all(room, len(urls))


async def looked_at_all(room: Postroom, stores: int) -> None:
    """Waits until each store was looked at, and all are closed."""
    while looks_of(room) < stores or room.router.open_stores:  # noqa: ASYNC110 - a room has no event for it
        await asyncio.sleep(0.02)


def looks_of(room: Postroom) -> int:
    """Returns how many looks the room has begun so far."""
    source: Any = room._source  # noqa: SLF001 - it has no public name
    looks: int = source.schedule.looks
    return looks


def _resident() -> int:
    """Returns the bytes of memory that this process uses."""
    with suppress(FileNotFoundError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * getpagesize()
    raise RuntimeError("this case needs /proc")
