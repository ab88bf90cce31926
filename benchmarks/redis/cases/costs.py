"""What a message costs the server: commands, requests, bytes, processor time and log; and how much memory it takes."""

from __future__ import annotations

from typing import NamedTuple

from tools.servers.redis import RedisServer

from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.common.environment import stderr
from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.redis.environment import DATABASES, Environment
from benchmarks.rounds import Case

WARM = 100


class Count(NamedTuple):
    commands: float
    reads: float
    received: float
    sent: float
    processor: float
    log: float

    def per_message(self, before: Count, messages: int) -> list[float]:
        return [(now - then) / messages for now, then in zip(self, before, strict=True)]


WHAT = (
    "commands, those in scripts too",
    "requests read",
    "bytes received",
    "bytes sent",
    "microseconds of processor",
    "bytes of log",
)


def costs(env: Environment) -> Section:
    """Bulk enqueue, then a drain, each by a new worker. Counts include what a worker does when it starts and stops."""
    figures: dict[str, tuple[list[float], list[float]]] = {}
    with RedisServer(DATABASES, appendonly=True) as server:
        counting = Environment(server, env.plan, env.notes)
        for name in (RAW, POSTROOM, POSTROOM_LISTS, *env.peers):
            stderr.print(f"  counting {name}")
            messages = env.plan.messages("costs", name)
            database = counting.new_database()
            counting.worker(name, database).close()
            before = _count(server)
            with counting.worker(name, database, install=False) as worker:
                worker.ask("fill", count=messages, size=BULK)
            between = _count(server)
            with counting.worker(name, database, install=False) as worker:
                worker.drain(env.plan.takes[name][-1], messages)
            after = _count(server)
            figures[name] = between.per_message(before, messages), after.per_message(between, messages)
    cases = [
        Case(f"{phase}: {what}", {name: [found[when][index]] for name, found in figures.items()})
        for when, phase in enumerate(("enqueue in bulk", "drain"))
        for index, what in enumerate(WHAT)
    ]
    return Section("what the server does", cases, "per message")


def _count(server: RedisServer) -> Count:
    found = server.info("all")
    return Count(
        found["total_commands_processed"],
        found["total_reads_processed"],
        found["total_net_input_bytes"],
        found["total_net_output_bytes"],
        1e6 * (found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"]),
        found["aof_current_size"],
    )


def memory(env: Environment) -> Section:
    """Payloads of one kilobyte that wait, and what is left of them when they are done."""
    waiting, done = Case("waiting"), Case("done")
    for name in (RAW, POSTROOM, *env.peers):
        stderr.print(f"  weighing {name}")
        messages = env.plan.messages("memory", name)
        with RedisServer(DATABASES) as server:  # a new one: its memory is not in pieces
            weighing = Environment(server, env.plan, env.notes)
            database = weighing.new_database()
            with weighing.worker(name, database) as worker:  # what there is once: scripts, groups, blocks of ids
                worker.ask("fill", count=WARM, size=BULK, note=env.plan.note)
                worker.drain(env.plan.takes[name][-1], WARM)
            before = _used(server)
            with weighing.worker(name, database, install=False) as worker:
                worker.ask("fill", count=messages, size=BULK, note=env.plan.note)
            waiting.rates[name] = [(_used(server) - before) / messages]
            with weighing.worker(name, database, install=False) as worker:
                worker.drain(env.plan.takes[name][-1], messages)
            done.rates[name] = [max(0, _used(server) - before) / messages]
    return Section("memory for payloads of 1,024 bytes", [waiting, done], "bytes per message")


def _used(server: RedisServer) -> int:
    """With no client connected but the one that asks."""
    return int(server.info("memory")["used_memory"])
