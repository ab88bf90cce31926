"""How fast messages come in: one by one, from many tasks, in bulk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.common.contenders import POSTROOM, RAW
from benchmarks.common.environment import Environment
from benchmarks.common.plan import BULK, TASKS
from benchmarks.common.report import Section
from benchmarks.common.worker_process import WorkerProcess

EACH, FROM_TASKS, IN_BULK = "one by one", f"from {TASKS} tasks", f"in bulk, {BULK:,} at once"


def enqueue(env: Environment, title: str = "enqueue") -> Section:
    rounds = env.plan.rounds
    with env.workers((RAW, POSTROOM, *env.peers)) as workers:
        env.try_out(workers, lambda name, worker: _prepare(worker, env.plan.messages("bulk", name)))

        def runs(case: str, **options: int) -> dict[str, Callable[[], float]]:
            return {
                name: partial(_sending, worker, case, env.plan.messages(case, name), **options)
                for name, worker in workers.items()
                if case != "tasks" or name != RAW  # it has one connection to send with
            }

        cases = [
            env.run(EACH, rounds, runs("each")),
            env.run(FROM_TASKS, rounds, runs("tasks", tasks=TASKS)),
            env.run(IN_BULK, rounds, runs("bulk", size=BULK)),
        ]
    return Section(title, cases, ratios=((POSTROOM, RAW), (POSTROOM, env.contenders.rival)))


def _prepare(worker: WorkerProcess, count: int) -> None:
    """Connects, and prepares statements."""
    worker.ask("bulk", count=count, size=BULK)
    worker.ask("each", count=20)


def _sending(worker: WorkerProcess, case: str, count: int, **options: int) -> float:
    return float(worker.ask(case, count=count, **options)) / count
