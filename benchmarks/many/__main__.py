"""`make bench-many`: rooms over many stores.

    python -m benchmarks.many [--quick] [--json FILE] [--only CASE ...] [--publish]

docs/reference/benchmarks-many.md says what is measured, and how to read it.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Callable
from importlib.metadata import version

from tools.servers.postgres import PostgresServer

from benchmarks.common.environment import stderr
from benchmarks.common.program import Program, installed
from benchmarks.common.report import Results, Section
from benchmarks.many.cases import changes, first_message, idle, one_store, processes, skew, unreachable
from benchmarks.many.environment import Environment, Measured
from benchmarks.many.plan import FULL, QUICK, Plan
from benchmarks.many.process import silence
from benchmarks.table import Aim

CASES: dict[str, Callable[[Environment], Measured]] = {
    "idle": idle.idle,
    "first-message": first_message.first_message,
    "skew": skew.skew,
    "unreachable": unreachable.unreachable,
    "changes": changes.changes,
    "restart": changes.restart,
    "processes": processes.processes,
    "one-store": one_store.one_store,
}

PROGRAM = Program(name="many", summary=__doc__.splitlines()[0], cases=tuple(CASES), drawn=())


def main() -> None:
    options = PROGRAM.options()
    silence()
    PROGRAM.deliver(run(QUICK if options.quick else FULL, tuple(options.only or CASES)), options)


def run(plan: Plan, names: tuple[str, ...]) -> Results:
    started = time.perf_counter()
    sections: dict[str, Section] = {}
    aims: list[Aim] = []
    with PostgresServer() as server:
        env = Environment(plan, server)
        loads = [os.getloadavg()[0]]
        for name in names:
            began = time.perf_counter()
            stderr.print(f"[bold]{name}[/bold]")
            measured = CASES[name](env)
            sections[name] = measured.section
            aims += measured.aims
            for aim in measured.aims:
                stderr.print(f"  {'met' if aim.met else 'MISSED'}: {aim.text}: {aim.value:.2f}")
            loads.append(os.getloadavg()[0])
            stderr.print(f"  took {time.perf_counter() - began:.0f} s")
        about = {
            "postroom": version("postroom"),
            "python": platform.python_version(),
            "SQLite": sqlite3.sqlite_version,
            "PostgreSQL": server.version,
            "asyncpg": installed("asyncpg"),
            "machine": f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores",
            "plan": plan.name,
            "load average": " ".join(f"{load:.1f}" for load in loads),
            "took": f"{time.perf_counter() - started:.0f} s",
        }
    return Results(about, sections, aims, env.notes)


if __name__ == "__main__":
    main()
