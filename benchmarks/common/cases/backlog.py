"""Whether a message costs more because more messages wait."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.common.cases.order import take_and_refill
from benchmarks.common.contenders import POSTROOM, RAW
from benchmarks.common.environment import Environment, stderr
from benchmarks.common.report import Section
from benchmarks.common.worker_process import WorkerProcess
from benchmarks.rounds import Case
from benchmarks.table import Aim

FILL, PIECE = 5_000, 100_000


def backlog(env: Environment, *, shared: bool) -> Section:
    """The levels, which are compared, take rounds. Where the raw loop knows our tables, both work on one backlog."""
    rounds, count = env.plan.slices
    batch = env.plan.batch
    workers: dict[tuple[int, str], WorkerProcess] = {}
    with ExitStack() as stack:
        for level in env.plan.levels:
            stderr.print(f"  filling {level:,}")
            database = env.new_database()
            for contender in (POSTROOM, RAW):
                database = database if shared else env.new_database()
                fills = contender == POSTROOM or not shared
                worker = stack.enter_context(env.worker(contender, database, install=fills))
                workers[level, contender] = worker
                if fills:
                    _fill(worker, level)
                    env.settle(database)
        for worker in workers.values():
            take_and_refill(worker, batch, batch)  # prepares statements
        contenders = {
            f"{contender} {level}": partial(take_and_refill, worker, batch, count)
            for (level, contender), worker in workers.items()
        }
        rates = env.run(f"{', '.join(f'{level:,}' for level in env.plan.levels)} waiting", rounds, contenders).rates
    cases = [
        Case(f"{level:,} waiting", {contender: rates[f"{contender} {level}"] for contender in (RAW, POSTROOM)})
        for level in env.plan.levels
    ]
    return Section(f"drain in batches of {batch}, by backlog", cases, ratios=((POSTROOM, RAW),))


def _fill(worker: WorkerProcess, level: int) -> None:
    for start in range(0, level, PIECE):  # each in less time than a worker may take
        worker.ask("fill", count=min(PIECE, level - start), size=FILL)


def flatness(section: Section) -> Aim:
    """Whether a message costs the same from the smallest level to the third."""
    cases = section.cases[:3]
    rates = [case.rate(POSTROOM) or 0 for case in cases]
    factor = max(rates) / min(rates)
    levels = f"{cases[0].name} to {cases[-1].name}"
    return Aim(f"dearest backlog / cheapest, {levels}, at most 1.3", factor, factor <= 1.3)
