"""How long a message takes to reach a worker that has nothing to do, in another process."""

from __future__ import annotations

import time
from statistics import median, quantiles

from benchmarks.postgres.crew import WorkerFailed
from benchmarks.postgres.report import Section
from benchmarks.postgres.stage import Stage, present, stderr
from benchmarks.postgres.subjects import PEERS, PGQUEUER, POSTROOM
from benchmarks.rounds import Case

SETTLE, PAUSE = 0.5, 0.02
"""Seconds until a worker that has started, and one that has handled a message, is idle."""


def latency(stage: Stage) -> Section:
    """From the call of enqueue to the call of the handler: the commit, the wake-up and the claim."""
    rounds, count = stage.plan.latencies
    stderr.print("  idle latency")
    found: dict[str, list[list[float]]] = {}
    names = present((POSTROOM, *PEERS))
    databases = {name: stage.database() for name in names}
    for number in range(rounds):
        for name in names:
            try:
                found.setdefault(name, []).append(_measure(stage, name, databases[name], count, first=number == 0))
            except WorkerFailed as failure:
                stage.leave_out(name, failure)
    cases = [
        Case("p50", {name: [median(each) for each in samples] for name, samples in found.items()}),
        Case("p99", {name: [_p99([one for each in samples for one in each])] for name, samples in found.items()}),
    ]
    return Section(f"idle latency, {rounds * count} messages", cases, "ms", ((PGQUEUER, POSTROOM),))


def _measure(stage: Stage, name: str, database: str, count: int, *, first: bool) -> list[float]:
    """Milliseconds."""
    with stage.hand(name, database, install=first) as sender, stage.hand(name, database, install=False) as receiver:
        sender.await_ready()
        receiver.ask("serve")
        time.sleep(SETTLE)
        sender.ask("one")  # connects, and prepares statements
        receiver.await_handled()
        samples = []
        for _ in range(count):
            time.sleep(PAUSE)
            sent = sender.ask("one")
            samples.append(1000 * (receiver.await_handled() - sent))
        receiver.ask("rest")
        return samples


def _p99(samples: list[float]) -> float:
    return quantiles(samples, n=100, method="inclusive")[-1]
