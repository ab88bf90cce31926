"""How long a message takes to reach a worker that has nothing to do, in another process."""

from __future__ import annotations

import time
from statistics import median, quantiles

from benchmarks.common.contenders import POSTROOM
from benchmarks.common.environment import Environment, stderr
from benchmarks.common.report import Section
from benchmarks.common.worker_process import WorkerFailed
from benchmarks.rounds import Case

SETTLE, PAUSE = 0.5, 0.02
"""Seconds until a worker that has started, and one that has handled a message, is idle."""


def latency(env: Environment) -> Section:
    """From the call of enqueue to the call of the handler: the commit, the wake-up and the claim."""
    rounds, count = env.plan.latencies
    stderr.print("  idle latency")
    found: dict[str, list[list[float]]] = {}
    names = (POSTROOM, *env.peers)
    databases = {name: env.new_database() for name in names}
    for number in range(rounds):
        for name in names:
            try:
                found.setdefault(name, []).append(_measure(env, name, databases[name], count, first=number == 0))
            except WorkerFailed as failure:
                env.leave_out(name, failure)
    cases = [
        Case("p50", {name: [median(each) for each in samples] for name, samples in found.items()}),
        Case("p99", {name: [_p99([one for each in samples for one in each])] for name, samples in found.items()}),
    ]
    return Section(f"idle latency, {rounds * count} messages", cases, "ms", ((env.contenders.rival, POSTROOM),))


def _measure(env: Environment, name: str, database: str, count: int, *, first: bool) -> list[float]:
    """Milliseconds."""
    with (
        env.worker(name, database, install=first) as sender,
        env.worker(name, database, install=False) as receiver,
    ):
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
        receiver.ask("stop_serving")
        return samples


def _p99(samples: list[float]) -> float:
    return quantiles(samples, n=100, method="inclusive")[-1]
