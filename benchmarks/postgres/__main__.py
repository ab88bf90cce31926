"""`make bench-postgres`: Postroom on PostgreSQL beside its peers and a raw loop on its tables, in the same run.

    python -m benchmarks.postgres [--quick] [--json FILE] [--only CASE ...] [--huge] [--publish]

docs/reference/benchmarks-postgres.md says what is measured, and how to read it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from statistics import median

import psycopg
from tools.servers.postgres import PostgresServer

from benchmarks.common.cases import backlog, drain, enqueue, latency, order
from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.common.environment import stderr
from benchmarks.common.program import Program, installed
from benchmarks.common.report import Results, Section
from benchmarks.postgres.aims import aims
from benchmarks.postgres.cases import costs, held_snapshot
from benchmarks.postgres.environment import Environment
from benchmarks.postgres.plan import FULL, QUICK, Plan
from benchmarks.postgres.subjects.raw import contents
from benchmarks.workload import PAYLOAD_BYTES

PACKAGES = ("asyncpg", "psycopg", "uvloop", "pgqueuer", "procrastinate", "saq", "awa-pg")
SETTINGS = ("fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum")

CASES: dict[str, Callable[[Environment], Section]] = {
    "enqueue": enqueue.enqueue,
    "drain": drain.one_process,
    "pairs": lambda env: drain.two_processes(env, None),
    "latency": latency.latency,
    "order": order.order,
    "backlog": lambda env: backlog.backlog(env, shared=True),
    "held_snapshot": held_snapshot.held_snapshot,
    "costs": costs.costs,
    "flow": costs.flow,
}

PROGRAM = Program(
    name="postgres",
    summary=__doc__.splitlines()[0],
    cases=tuple(CASES),
    drawn=("enqueue", "drain", "latency", "order", "backlog", "held_snapshot"),
)


def main() -> None:
    options = PROGRAM.options(("--huge", {"action": "store_true", "help": "a backlog of ten million too"}))
    plan = QUICK if options.quick else FULL
    if options.huge:
        plan = replace(plan, levels=(*plan.levels, 10**7))
    PROGRAM.deliver(run(plan, tuple(options.only or CASES)), options)


def run(plan: Plan, names: tuple[str, ...]) -> Results:
    started = time.perf_counter()
    sections: dict[str, Section] = {}
    with PostgresServer() as server:
        env = Environment(server, plan)
        env.note_missing()
        _check_same_work(env)
        commits = [_commit_milliseconds(server)]
        for name in names:
            began = time.perf_counter()
            stderr.print(f"[bold]{name}[/bold]")
            if name == "pairs":
                sections[name] = drain.two_processes(env, sections.get("drain"))
            else:
                sections[name] = CASES[name](env)
            stderr.print(f"  took {time.perf_counter() - began:.0f} s")
        commits.append(_commit_milliseconds(server))
        about = {
            "postroom": version("postroom"),
            "python": platform.python_version(),
            "PostgreSQL": server.version,
            **{name: installed(name) for name in PACKAGES},
            **{name: server.query(f"SHOW {name}")[0][0] for name in SETTINGS},
            "machine": f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores",
            "payload": f"{PAYLOAD_BYTES} bytes of JSON",
            "plan": f"{plan.name}, {plan.rounds.count} rounds",
            "one durable commit": f"{commits[0]:.2f} ms before, {commits[1]:.2f} ms after",
            "took": f"{time.perf_counter() - started:.0f} s",
        }
        return Results(about, sections, aims(sections), env.notes)


def _check_same_work(env: Environment) -> None:
    """The raw loop is a limit only while it leaves the same rows as Postroom."""
    left = []
    for name in (RAW, POSTROOM, POSTROOM_LISTS):
        database = env.new_database()
        with env.worker(name, database) as worker:
            worker.ask("fill", count=6, size=6)
            worker.drain(2, 6)
            worker.ask("fill", count=2, size=2)
        tables = asyncio.run(contents(env.server.url(database)))
        left.append({table: [_comparable(row) for row in rows] for table, rows in tables.items()})
    if any(rows != left[0] for rows in left):
        raise AssertionError(
            "the raw loop and Postroom leave different rows: adapt benchmarks/postgres/subjects/raw.py"
        )


def _comparable(row: tuple[object, ...]) -> list[object]:
    """Without the ids that no two workers share."""
    return [pair for pair in row if isinstance(pair, tuple) and pair[0] != "message_id"]


def _commit_milliseconds(server: PostgresServer) -> float:
    """What one durable commit of one row costs here: it decides every rate at small batches.

    It is measured twice: if the results differ much, something else was using the machine.
    """
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS one_row (number bigint)")
        times = []
        for number in range(100):
            began = time.perf_counter()
            connection.execute("INSERT INTO one_row VALUES (%s)", (number,))
            times.append(1000 * (time.perf_counter() - began))
        return median(times)


if __name__ == "__main__":
    main()
