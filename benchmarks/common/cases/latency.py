"""How long a message takes to reach a worker that has nothing to do, in another process."""

from __future__ import annotations

import time
from statistics import median, quantiles

from benchmarks.common.crew import WorkerFailed
from benchmarks.common.lineup import POSTROOM
from benchmarks.common.report import Section
from benchmarks.common.stage import Stage, stderr
from benchmarks.rounds import Case

SETTLE, PAUSE = 0.5, 0.02
"""Seconds until a worker that has started, and one that has handled a message, is idle."""


def latency(stage: Stage) -> Section:
    """From the call of enqueue to the call of the handler: the commit, the wake-up and the claim."""
    rounds, count = stage.plan.latencies
    stderr.print("  idle latency")
    found: dict[str, list[list[float]]] = {}
    names = (POSTROOM, *stage.peers)
    places = {name: stage.place() for name in names}
    for number in range(rounds):
        for name in names:
            try:
                found.setdefault(name, []).append(_measure(stage, name, places[name], count, first=number == 0))
            except WorkerFailed as failure:
                stage.leave_out(name, failure)
    cases = [
        Case("p50", {name: [median(each) for each in samples] for name, samples in found.items()}),
        Case("p99", {name: [_p99([one for each in samples for one in each])] for name, samples in found.items()}),
    ]
    return Section(f"idle latency, {rounds * count} messages", cases, "ms", ((stage.lineup.rival, POSTROOM),))


def _measure(stage: Stage, name: str, place: str, count: int, *, first: bool) -> list[float]:
    """Milliseconds."""
    with stage.hand(name, place, install=first) as sender, stage.hand(name, place, install=False) as receiver:
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
