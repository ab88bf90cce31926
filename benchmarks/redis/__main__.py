"""`make bench-redis`: Postroom on Redis beside its peers and a raw loop of Lua scripts, in the same run.

    python -m benchmarks.redis [--quick] [--json FILE] [--only CASE ...] [--publish]

docs/reference/benchmarks-redis.md says what is measured, and how to read it.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import redis
from tools.servers.redis import RedisServer

from benchmarks.common.cases import backlog, drain, enqueue, latency, order
from benchmarks.common.environment import stderr
from benchmarks.common.program import Program, installed
from benchmarks.common.report import Results, Section
from benchmarks.redis.aims import aims
from benchmarks.redis.cases import costs
from benchmarks.redis.environment import DATABASES, Environment
from benchmarks.redis.plan import FULL, QUICK, Plan
from benchmarks.workload import PAYLOAD_BYTES

PACKAGES = ("redis", "hiredis", "coredis", "uvloop", "dramatiq", "streaq")
PACKAGES_APART = {"saq": ("saq",), "arq": ("arq",), "taskiq": ("taskiq", "taskiq-redis")}
SETTINGS = ("save", "appendonly", "maxmemory-policy", "io-threads")

CASES: dict[str, Callable[[Environment], Section]] = {
    "enqueue": enqueue.enqueue,
    "drain": drain.one_process,
    "pairs": lambda env: drain.two_processes(env, None),
    "enqueue-log": lambda env: enqueue.enqueue(env, "enqueue, with a log (AOF, everysec)"),
    "drain-log": lambda env: drain.one_process(env, "drain, one process, with a log (AOF, everysec)"),
    "latency": latency.latency,
    "order": order.order,
    "backlog": lambda env: backlog.backlog(env, shared=False),
    "memory": costs.memory,
    "costs": costs.costs,
}
WITH_LOG = ("enqueue-log", "drain-log")

PROGRAM = Program(
    name="redis",
    summary=__doc__.splitlines()[0],
    cases=tuple(CASES),
    drawn=("enqueue", "drain", "drain-log", "latency", "order", "backlog", "memory"),
)


def main() -> None:
    options = PROGRAM.options()
    PROGRAM.deliver(run(QUICK if options.quick else FULL, tuple(options.only or CASES)), options)


def run(plan: Plan, names: tuple[str, ...]) -> Results:
    started = time.perf_counter()
    sections: dict[str, Section] = {}
    with RedisServer(DATABASES) as server, RedisServer(DATABASES, appendonly=True) as logging:
        plain = Environment(server, plan)
        logged = Environment(logging, plan, plain.notes)
        plain.note_missing()
        trips = [_trip_microseconds(server)]
        for name in names:
            began = time.perf_counter()
            stderr.print(f"[bold]{name}[/bold]")
            env = logged if name in WITH_LOG else plain
            if name == "pairs":
                sections[name] = drain.two_processes(env, sections.get("drain"))
            else:
                sections[name] = CASES[name](env)
            env.clear()
            stderr.print(f"  took {time.perf_counter() - began:.0f} s")
        trips.append(_trip_microseconds(server))
        about = {
            "postroom": version("postroom"),
            "python": platform.python_version(),
            "Redis": server.version,
            **{name: installed(name) for name in PACKAGES},
            **_versions_apart(),
            **{name: _setting(server, name) for name in SETTINGS},
            "machine": f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores",
            "payload": f"{PAYLOAD_BYTES} bytes of JSON",
            "plan": f"{plan.name}, {plan.rounds.count} rounds",
            "one round trip": f"{trips[0]:.0f} µs before, {trips[1]:.0f} µs after",
            "took": f"{time.perf_counter() - started:.0f} s",
        }
        return Results(about, sections, aims(sections), plain.notes)


def _setting(server: RedisServer, name: str) -> str:
    found: dict[str, str] = server.query("CONFIG", "GET", name)
    return f"'{found[name]}'" if " " in found[name] else found[name]


def _versions_apart() -> dict[str, str]:
    """Returns the versions of the peers in separate environments, each with its redis-py."""
    found = {}
    for peer, packages in PACKAGES_APART.items():
        library = Path(sys.prefix) / peer / "lib"
        versions = {name: _version_in(library, name) for name in (*packages, "redis")}
        found[peer] = ", ".join(versions[name] if name == peer else f"{name} {versions[name]}" for name in versions)
    return found


def _version_in(library: Path, package: str) -> str:
    for metadata in library.glob(f"python*/site-packages/{package.replace('-', '_')}-*.dist-info"):
        return metadata.name.removesuffix(".dist-info").split("-")[1]
    return "missing"


def _trip_microseconds(server: RedisServer) -> float:
    """The cost of one command and its reply: it bounds every rate at small batches.

    It is measured twice: if the results differ much, something else was using the machine.
    """
    with redis.Redis.from_url(server.url()) as client:
        times = []
        for _ in range(1000):
            began = time.perf_counter()
            client.ping()
            times.append(1e6 * (time.perf_counter() - began))
        return median(times)


if __name__ == "__main__":
    main()
