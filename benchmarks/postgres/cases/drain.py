"""How fast a backlog is handled by handlers that do nothing: at several batch sizes, and by two processes."""

from __future__ import annotations

from contextlib import ExitStack
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
                name: partial(_draining, hand, stage.plan.messages("drain", name) // (4 if batch == 10 else 1), batch)
                for name, hand in hands.items()
                if batch in BATCHES[name]
            }
            for name in contenders:
                _draining(hands[name], 2 * batch, batch)  # connects, and prepares statements
            cases.append(stage.run(f"batches of {batch:,}", stage.plan.turns, contenders))
    return Section("drain, one process", cases, ratios=RATIOS)


def _draining(hand: Hand, count: int, batch: int) -> float:
    """As many as it takes are sent before the clock starts."""
    hand.ask("fill", count=count, size=BULK)
    span = hand.drain(batch, count)
    return (span.ended - span.began) / count


def two_processes(stage: Stage, alone: Section | None) -> Section:
    """Each contender at its own best batch size, where that was measured."""
    with ExitStack() as stack:
        pairs = {}
        for name in present(CONTENDERS):
            database = stage.database()
            first = stack.enter_context(stage.hand(name, database))
            pairs[name] = first, stack.enter_context(stage.hand(name, database, install=False))
        batches = {name: _best_batch(name, alone) for name in pairs}
        contenders = {
            name: partial(_draining_together, pair, 2 * stage.plan.messages("drain", name), batches[name])
            for name, pair in pairs.items()
        }
        for name, pair in pairs.items():
            _draining_together(pair, 4 * batches[name], batches[name])
        case = stage.run("at its best batch size", stage.plan.pairs, contenders)
    return Section("drain, two processes", [case], ratios=RATIOS)


def _best_batch(name: str, alone: Section | None) -> int:
    if alone is None or name not in alone.contenders:
        return BATCHES[name][-1]
    case = max(alone.cases, key=lambda case: case.rate(name) or 0)
    return int(case.name.split()[-1].replace(",", ""))


def _draining_together(pair: tuple[Hand, Hand], count: int, batch: int) -> float:
    """From the first start to the last end. Neither knows how many it will get."""
    pair[0].ask("fill", count=count, size=BULK)
    for hand in pair:
        hand.begin("drain", batch=batch, expected=None)
    spans = [Span(*hand.end()) for hand in pair]
    check_handled(spans, count)
    return (max(span.ended for span in spans) - min(span.began for span in spans)) / count
