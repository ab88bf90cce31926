"""What order costs: FIFO boxes with few and with many groups, beside boxes without order."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median

from benchmarks.common.contenders import POSTROOM, RAW
from benchmarks.common.environment import Environment, stderr
from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.common.worker_process import WorkerProcess
from benchmarks.rounds import Case
from benchmarks.table import Aim, at_least

FIFO, UNORDERED, RAW_UNORDERED = "postroom, fifo", "postroom, unordered", "raw, unordered"


def order(env: Environment) -> Section:
    plan = env.plan
    standing, count = plan.ordered
    with ExitStack() as stack:
        workers: dict[str, WorkerProcess] = {
            RAW_UNORDERED: stack.enter_context(env.worker(RAW)),
            UNORDERED: stack.enter_context(env.worker(POSTROOM)),
            **{name(groups): stack.enter_context(env.worker(POSTROOM, groups=groups)) for groups in plan.groups},
        }
        stderr.print("  filling FIFO boxes")
        for worker, groups in zip(workers.values(), (0, 0, *plan.groups), strict=True):
            worker.ask("fill", count=max(standing, groups), size=BULK)
        runs = {each: partial(take_and_refill, worker, plan.batch, count) for each, worker in workers.items()}
        rates = env.run("FIFO", plan.rounds, runs).rates
    cases = [
        Case(
            name(groups),
            {RAW_UNORDERED: rates[RAW_UNORDERED], UNORDERED: rates[UNORDERED], FIFO: rates[name(groups)]},
        )
        for groups in plan.groups
    ]
    return Section(f"order: drain in batches of {plan.batch}", cases, ratios=((FIFO, UNORDERED),))


def name(groups: int) -> str:
    return f"{groups:,} group{'s' if groups > 1 else ''}"


def take_and_refill(worker: WorkerProcess, batch: int, count: int) -> float:
    """Handle some of the backlog, then send as many: it stays as long as it is."""
    seconds = worker.take(batch, count)
    worker.ask("fill", count=count, size=BULK)
    return seconds


def fifo_share(section: Section) -> Aim:
    ratio = median(section.case(name(10_000)).ratios(FIFO, UNORDERED))
    return at_least(0.5, ratio, "FIFO over 10,000 groups / unordered")
