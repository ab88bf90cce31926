"""How fast a backlog is handled by handlers that do nothing: at several batch sizes, and by two processes."""

from __future__ import annotations

from functools import partial

from benchmarks.common.crew import Hand, check_handled
from benchmarks.common.lineup import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.common.plan import BULK, Plan
from benchmarks.common.report import Section
from benchmarks.common.stage import Stage
from benchmarks.common.subject import Span


def one_process(stage: Stage, title: str = "drain, one process") -> Section:
    cases = []
    with stage.hands((RAW, POSTROOM, POSTROOM_LISTS, *stage.peers)) as hands:
        for batch in stage.plan.batches:
            able = {name: hand for name, hand in hands.items() if batch in stage.plan.takes[name]}
            # Connects, and prepares statements.
            stage.try_out(able, lambda _, hand, batch=batch: draining(hand, 2 * batch, batch))  # type: ignore[misc]
            contenders = {
                name: partial(
                    draining, hand, stage.plan.messages("drain", name) // stage.plan.fewer.get(batch, 1), batch
                )
                for name, hand in able.items()
            }
            cases.append(stage.run(f"batches of {batch:,}", stage.plan.turns, contenders))
    return Section(title, cases, ratios=_ratios(stage))


def draining(hand: Hand, count: int, batch: int) -> float:
    """As many as it takes are sent before the clock starts."""
    hand.ask("fill", count=count, size=BULK)
    span = hand.drain(batch, count)
    return (span.ended - span.began) / count


def two_processes(stage: Stage, alone: Section | None) -> Section:
    """Each contender at its own best batch size, where that was measured."""
    turns, wanted = stage.plan.pairs
    names = stage.present(*wanted)
    places = {name: stage.place() for name in names}
    for name in names:
        stage.hand(name, places[name]).close()
    contenders = {
        name: partial(
            _draining_together,
            stage,
            name,
            places[name],
            2 * stage.plan.messages("drain", name),
            _best_batch(stage.plan, name, alone),
        )
        for name in names
    }
    case = stage.run("at its best batch size", turns, contenders)
    return Section("drain, two processes", [case], ratios=_ratios(stage))


def _ratios(stage: Stage) -> tuple[tuple[str, str], ...]:
    rival = stage.lineup.rival
    return (POSTROOM, RAW), (POSTROOM_LISTS, RAW), (POSTROOM, rival), (POSTROOM_LISTS, rival)


def _best_batch(plan: Plan, name: str, alone: Section | None) -> int:
    if alone is None or name not in alone.contenders:
        return plan.takes[name][-1]
    case = max(alone.cases, key=lambda case: case.rate(name) or 0)
    return int(case.name.split()[-1].replace(",", ""))


def _draining_together(stage: Stage, name: str, place: str, count: int, batch: int) -> float:
    """From the first start to the last end. Neither knows how many it will get.

    The processes live for a turn only: together their pools would be too many connections for the server's defaults.
    """
    with stage.hand(name, place, install=False) as one, stage.hand(name, place, install=False) as other:
        for hand in (one, other):
            draining(hand, batch, batch)  # connects, and prepares statements
        one.ask("fill", count=count, size=BULK)
        for hand in (one, other):
            hand.begin("drain", batch=batch, expected=None)
        spans = [Span(*hand.end()) for hand in (one, other)]
    check_handled(spans, count)
    return (max(span.ended for span in spans) - min(span.began for span in spans)) / count
