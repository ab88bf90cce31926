"""What a forgotten transaction costs: its snapshot keeps every dead row, in the tables and in the indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import psycopg

from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.common.worker_process import WorkerProcess
from benchmarks.postgres.environment import Environment
from benchmarks.postgres.plan import BATCH, BATCHES
from benchmarks.postgres.subjects import PGQUEUER
from benchmarks.rounds import Case

FREE, HELD = "free", "xmin held"


def held_snapshot(env: Environment) -> Section:
    rounds, counts = env.plan.held
    cases = []
    with ExitStack() as stack:
        for name in env.present(*counts):
            databases = {FREE: env.new_database(), HELD: env.new_database()}
            workers = {case: stack.enter_context(env.worker(name, database)) for case, database in databases.items()}
            sent = counts[name]
            contenders = {
                case: partial(_draining, env, workers[case], databases[case], sent, held=case == HELD)
                for case in databases
            }
            rates = env.run(f"{name}, {sent:,} while xmin is held", rounds, contenders).rates
            cases.append(Case(f"{name}, {sent:,} messages", rates))
    return Section("drain while another transaction holds the xmin horizon", cases, ratios=((HELD, FREE),))


def _draining(env: Environment, worker: WorkerProcess, database: str, count: int, *, held: bool) -> float:
    """The messages are sent after the snapshot was taken. Afterwards everything dead is removed."""
    batch = BATCH if worker.name != PGQUEUER else BATCHES[PGQUEUER][-1]
    with _snapshot(env.server.url(database)) if held else ExitStack():
        worker.ask("fill", count=count, size=BULK)
        span = worker.drain(batch, count)
    env.query(database, "VACUUM")
    return (span.ended - span.began) / count


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.execute("ROLLBACK")
