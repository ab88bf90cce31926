"""`make bench-postgres`: Postroom on PostgreSQL beside its peers and a raw loop on its tables, in the same run.

    python -m benchmarks.postgres [--quick] [--json FILE] [--only CASE ...] [--huge] [--publish]

docs/reference/benchmarks-postgres.md says what is measured, and how to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import psycopg
from tools.servers.postgres import PostgresServer

from benchmarks.postgres.aims import aims
from benchmarks.postgres.cases import backlog, costs, drain, enqueue, horizon, latency, order
from benchmarks.postgres.plan import FULL, QUICK, Plan
from benchmarks.postgres.report import Results, Section
from benchmarks.postgres.stage import Stage, present, stderr
from benchmarks.postgres.subjects import PEERS, POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.postgres.subjects.raw import contents
from benchmarks.workload import PAYLOAD_BYTES

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference"
PACKAGES = ("asyncpg", "psycopg", "uvloop", "pgqueuer", "procrastinate", "saq", "awa-pg")
SETTINGS = ("fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum")

CASES: dict[str, Callable[[Stage], Section]] = {
    "enqueue": enqueue.enqueue,
    "drain": drain.one_process,
    "pairs": lambda stage: drain.two_processes(stage, None),
    "latency": latency.latency,
    "order": order.order,
    "backlog": backlog.backlog,
    "horizon": horizon.horizon,
    "costs": costs.costs,
    "flow": costs.flow,
}


def main() -> None:
    options = _options()
    results = run(_plan(options), tuple(options.only or CASES))
    text = results.text()
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results.as_json(), indent=2) + "\n", "utf-8")
    if options.plots is not None or options.publish:
        from benchmarks.postgres import plots

        plots.draw(results, options.plots or DOCUMENTATION / "plots")
    if options.publish:
        _publish(text, DOCUMENTATION / "benchmarks-postgres.md")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, backlogs of at most 100,000: two minutes")
    parser.add_argument("--huge", action="store_true", help="a backlog of ten million too")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=f"some cases only: {', '.join(CASES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the figures there")
    parser.add_argument("--publish", action="store_true", help="write text and plots into the documentation")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    return replace(plan, levels=(*plan.levels, 10**7)) if options.huge else plan


def run(plan: Plan, names: tuple[str, ...]) -> Results:
    started = time.perf_counter()
    sections: dict[str, Section] = {}
    with PostgresServer() as server:
        stage = Stage(server, plan)
        missing = [name for name in PEERS if name not in present(PEERS)]
        stage.notes += [f"{name} is not installed, and was left out" for name in missing]
        _check_same_work(stage)
        commits = [_commit_milliseconds(server)]
        for name in names:
            began = time.perf_counter()
            stderr.print(f"[bold]{name}[/bold]")
            if name == "pairs":
                sections[name] = drain.two_processes(stage, sections.get("drain"))
            else:
                sections[name] = CASES[name](stage)
            stderr.print(f"  took {time.perf_counter() - began:.0f} s")
        commits.append(_commit_milliseconds(server))
        about = {
            "postroom": version("postroom"),
            "python": platform.python_version(),
            "PostgreSQL": server.version,
            **{name: _version(name) for name in PACKAGES},
            **{name: server.query(f"SHOW {name}")[0][0] for name in SETTINGS},
            "machine": f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores",
            "payload": f"{PAYLOAD_BYTES} bytes of JSON",
            "plan": f"{plan.name}, {plan.turns.rounds} rounds",
            "one durable commit": f"{commits[0]:.2f} ms before, {commits[1]:.2f} ms after",
            "took": f"{time.perf_counter() - started:.0f} s",
        }
        return Results(about, sections, aims(sections), stage.notes)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _check_same_work(stage: Stage) -> None:
    """The raw loop is a limit only while it leaves the same rows as Postroom."""
    left = []
    for name in (RAW, POSTROOM, POSTROOM_LISTS):
        database = stage.database()
        with stage.hand(name, database) as hand:
            hand.ask("fill", count=6, size=6)
            hand.drain(2, 6)
            hand.ask("fill", count=2, size=2)
        tables = asyncio.run(contents(stage.server.url(database)))
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

    It is asked twice: where the answers differ much, something else was using the machine.
    """
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS one_row (number bigint)")
        times = []
        for number in range(100):
            began = time.perf_counter()
            connection.execute("INSERT INTO one_row VALUES (%s)", (number,))
            times.append(1000 * (time.perf_counter() - began))
        return median(times)


def _publish(text: str, page: Path) -> None:
    """Between the marks of the page."""
    before, rest = page.read_text("utf-8").split("<!-- begin -->", 1)
    after = rest.split("<!-- end -->", 1)[1]
    page.write_text(f"{before}<!-- begin -->\n\n{text}\n<!-- end -->{after}", "utf-8")


if __name__ == "__main__":
    main()
