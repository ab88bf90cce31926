"""What a forgotten transaction costs: its snapshot keeps every dead row, in the tables and in the indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import psycopg

from benchmarks.common.crew import Hand
from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.postgres.plan import BATCH, BATCHES
from benchmarks.postgres.stage import Stage
from benchmarks.postgres.subjects import PGQUEUER
from benchmarks.rounds import Case

FREE, HELD = "free", "xmin held"


def horizon(stage: Stage) -> Section:
    turns, counts = stage.plan.held
    cases = []
    with ExitStack() as stack:
        for name in stage.present(*counts):
            databases = {FREE: stage.place(), HELD: stage.place()}
            hands = {case: stack.enter_context(stage.hand(name, database)) for case, database in databases.items()}
            sent = counts[name]
            contenders = {
                case: partial(_draining, stage, hands[case], databases[case], sent, held=case == HELD)
                for case in databases
            }
            rates = stage.run(f"{name}, {sent:,} while xmin is held", turns, contenders).rates
            cases.append(Case(f"{name}, {sent:,} messages", rates))
    return Section("drain while another transaction holds the xmin horizon", cases, ratios=((HELD, FREE),))


def _draining(stage: Stage, hand: Hand, database: str, count: int, *, held: bool) -> float:
    """The messages are sent after the snapshot was taken. Afterwards everything dead is removed."""
    batch = BATCH if hand.name != PGQUEUER else BATCHES[PGQUEUER][-1]
    with _snapshot(stage.server.url(database)) if held else ExitStack():
        hand.ask("fill", count=count, size=BULK)
        span = hand.drain(batch, count)
    stage.query(database, "VACUUM")
    return (span.ended - span.began) / count


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.execute("ROLLBACK")
