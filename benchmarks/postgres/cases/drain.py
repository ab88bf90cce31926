"""How fast a backlog is handled by handlers that do nothing: at several batch sizes, and by two processes."""

from __future__ import annotations

from functools import partial

from benchmarks.postgres.crew import Hand, check_handled
from benchmarks.postgres.plan import BATCHES, BULK
from benchmarks.postgres.report import Section
from benchmarks.postgres.stage import Stage, present
from benchmarks.postgres.subjects import PEERS, PGQUEUER, POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.postgres.subjects.base import Span

CONTENDERS = (RAW, POSTROOM, POSTROOM_LISTS, *PEERS)
RATIOS = ((POSTROOM, RAW), (POSTROOM_LISTS, RAW), (POSTROOM, PGQUEUER))


def one_process(stage: Stage) -> Section:
    cases = []
    with stage.hands(present(CONTENDERS)) as hands:
        for batch in stage.plan.batches:
            contenders = {
                name: partial(draining, hand, stage.plan.messages("drain", name) // (4 if batch == 10 else 1), batch)
                for name, hand in hands.items()
                if batch in BATCHES[name]
            }
            for name in contenders:
                draining(hands[name], 2 * batch, batch)  # connects, and prepares statements
            cases.append(stage.run(f"batches of {batch:,}", stage.plan.turns, contenders))
    return Section("drain, one process", cases, ratios=RATIOS)


def draining(hand: Hand, count: int, batch: int) -> float:
    """As many as it takes are sent before the clock starts."""
    hand.ask("fill", count=count, size=BULK)
    span = hand.drain(batch, count)
    return (span.ended - span.began) / count


def two_processes(stage: Stage, alone: Section | None) -> Section:
    """Each contender at its own best batch size, where that was measured."""
    turns, wanted = stage.plan.pairs
    names = present(wanted)
    databases = {name: stage.database() for name in names}
    for name in names:
        stage.hand(name, databases[name]).close()
    contenders = {
        name: partial(
            _draining_together,
            stage,
            name,
            databases[name],
            2 * stage.plan.messages("drain", name),
            _best_batch(name, alone),
        )
        for name in names
    }
    case = stage.run("at its best batch size", turns, contenders)
    return Section("drain, two processes", [case], ratios=RATIOS)


def _best_batch(name: str, alone: Section | None) -> int:
    if alone is None or name not in alone.contenders:
        return BATCHES[name][-1]
    case = max(alone.cases, key=lambda case: case.rate(name) or 0)
    return int(case.name.split()[-1].replace(",", ""))


def _draining_together(stage: Stage, name: str, database: str, count: int, batch: int) -> float:
    """From the first start to the last end. Neither knows how many it will get.

    The processes live for a turn only: together their pools would be too many connections for the server's defaults.
    """
    with stage.hand(name, database, install=False) as one, stage.hand(name, database, install=False) as other:
        for hand in (one, other):
            draining(hand, batch, batch)  # connects, and prepares statements
        one.ask("fill", count=count, size=BULK)
        for hand in (one, other):
            hand.begin("drain", batch=batch, expected=None)
        spans = [Span(*hand.end()) for hand in (one, other)]
    check_handled(spans, count)
    return (max(span.ended for span in spans) - min(span.began for span in spans)) / count
