"""How fast a backlog is handled by handlers that do nothing: at several batch sizes, and by two processes."""

from __future__ import annotations

from functools import partial

from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.common.environment import Environment
from benchmarks.common.plan import BULK, Plan
from benchmarks.common.report import Section
from benchmarks.common.subject import Span
from benchmarks.common.worker_process import WorkerProcess, check_handled


def one_process(env: Environment, title: str = "drain, one process") -> Section:
    cases = []
    with env.workers((RAW, POSTROOM, POSTROOM_LISTS, *env.peers)) as workers:
        for batch in env.plan.batches:
            able = {name: worker for name, worker in workers.items() if batch in env.plan.takes[name]}
            # Connects, and prepares statements.
            env.try_out(able, lambda _, worker, batch=batch: draining(worker, 2 * batch, batch))  # type: ignore[misc]
            contenders = {
                name: partial(
                    draining,
                    worker,
                    env.plan.messages("drain", name) // env.plan.fewer.get(batch, 1),
                    batch,
                )
                for name, worker in able.items()
            }
            cases.append(env.run(f"batches of {batch:,}", env.plan.rounds, contenders))
    return Section(title, cases, ratios=_ratios(env))


def draining(worker: WorkerProcess, count: int, batch: int) -> float:
    """As many as it takes are sent before the clock starts."""
    worker.ask("fill", count=count, size=BULK)
    span = worker.drain(batch, count)
    return (span.ended - span.began) / count


def two_processes(env: Environment, alone: Section | None) -> Section:
    """Each contender at its own best batch size, where that was measured."""
    rounds, wanted = env.plan.pairs
    names = env.present(*wanted)
    databases = {name: env.new_database() for name in names}
    for name in names:
        env.worker(name, databases[name]).close()
    contenders = {
        name: partial(
            _draining_together,
            env,
            name,
            databases[name],
            2 * env.plan.messages("drain", name),
            _best_batch(env.plan, name, alone),
        )
        for name in names
    }
    case = env.run("at its best batch size", rounds, contenders)
    return Section("drain, two processes", [case], ratios=_ratios(env))


def _ratios(env: Environment) -> tuple[tuple[str, str], ...]:
    rival = env.contenders.rival
    return (POSTROOM, RAW), (POSTROOM_LISTS, RAW), (POSTROOM, rival), (POSTROOM_LISTS, rival)


def _best_batch(plan: Plan, name: str, alone: Section | None) -> int:
    if alone is None or name not in alone.contenders:
        return plan.takes[name][-1]
    case = max(alone.cases, key=lambda case: case.rate(name) or 0)
    return int(case.name.split()[-1].replace(",", ""))


def _draining_together(env: Environment, name: str, database: str, count: int, batch: int) -> float:
    """From the first start to the last end. Neither knows how many it will get.

    The processes live for one run only: together their pools would be too many connections for the server's defaults.
    """
    with env.worker(name, database, install=False) as one, env.worker(name, database, install=False) as other:
        for worker in (one, other):
            draining(worker, batch, batch)  # connects, and prepares statements
        one.ask("fill", count=count, size=BULK)
        for worker in (one, other):
            worker.begin("drain", batch=batch, expected=None)
        spans = [Span(*worker.end()) for worker in (one, other)]
    check_handled(spans, count)
    return (max(span.ended for span in spans) - min(span.began for span in spans)) / count
