"""What a message costs the server: commands, requests, bytes, processor time and log; and how much memory it takes."""

from __future__ import annotations

from typing import NamedTuple

from tools.servers.redis import RedisServer

from benchmarks.common.lineup import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.common.stage import stderr
from benchmarks.redis.stage import PLACES, Stage
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


def costs(stage: Stage) -> Section:
    """Bulk enqueue, then a drain, each by a new worker. Counts include what a worker does when it starts and stops."""
    figures: dict[str, tuple[list[float], list[float]]] = {}
    with RedisServer(PLACES, appendonly=True) as server:
        counting = Stage(server, stage.plan, stage.notes)
        for name in (RAW, POSTROOM, POSTROOM_LISTS, *stage.peers):
            stderr.print(f"  counting {name}")
            messages = stage.plan.messages("costs", name)
            place = counting.place()
            counting.hand(name, place).close()
            before = _count(server)
            with counting.hand(name, place, install=False) as hand:
                hand.ask("fill", count=messages, size=BULK)
            between = _count(server)
            with counting.hand(name, place, install=False) as hand:
                hand.drain(stage.plan.takes[name][-1], messages)
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


def memory(stage: Stage) -> Section:
    """Payloads of one kilobyte that wait, and what is left of them when they are done."""
    waiting, done = Case("waiting"), Case("done")
    for name in (RAW, POSTROOM, *stage.peers):
        stderr.print(f"  weighing {name}")
        messages = stage.plan.messages("memory", name)
        with RedisServer(PLACES) as server:  # a new one: its memory is not in pieces
            weighing = Stage(server, stage.plan, stage.notes)
            place = weighing.place()
            with weighing.hand(name, place) as hand:  # what there is once: scripts, groups, blocks of ids
                hand.ask("fill", count=WARM, size=BULK, note=stage.plan.note)
                hand.drain(stage.plan.takes[name][-1], WARM)
            before = _used(server)
            with weighing.hand(name, place, install=False) as hand:
                hand.ask("fill", count=messages, size=BULK, note=stage.plan.note)
            waiting.rates[name] = [(_used(server) - before) / messages]
            with weighing.hand(name, place, install=False) as hand:
                hand.drain(stage.plan.takes[name][-1], messages)
            done.rates[name] = [max(0, _used(server) - before) / messages]
    return Section("memory for payloads of 1,024 bytes", [waiting, done], "bytes per message")


def _used(server: RedisServer) -> int:
    """With no client connected but the one that asks."""
    return int(server.info("memory")["used_memory"])
