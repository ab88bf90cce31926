"""How fast messages come in: one by one, from many tasks, in bulk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.common.crew import Hand
from benchmarks.common.lineup import POSTROOM, RAW
from benchmarks.common.plan import BULK, TASKS
from benchmarks.common.report import Section
from benchmarks.common.stage import Stage

EACH, FROM_TASKS, IN_BULK = "one by one", f"from {TASKS} tasks", f"in bulk, {BULK:,} at once"


def enqueue(stage: Stage, title: str = "enqueue") -> Section:
    turns = stage.plan.turns
    with stage.hands((RAW, POSTROOM, *stage.peers)) as hands:
        stage.try_out(hands, lambda name, hand: _prepare(hand, stage.plan.messages("bulk", name)))

        def turn(case: str, **options: int) -> dict[str, Callable[[], float]]:
            return {
                name: partial(_sending, hand, case, stage.plan.messages(case, name), **options)
                for name, hand in hands.items()
                if case != "tasks" or name != RAW  # it has one connection to send with
            }

        cases = [
            stage.run(EACH, turns, turn("each")),
            stage.run(FROM_TASKS, turns, turn("tasks", tasks=TASKS)),
            stage.run(IN_BULK, turns, turn("bulk", size=BULK)),
        ]
    return Section(title, cases, ratios=((POSTROOM, RAW), (POSTROOM, stage.lineup.rival)))


def _prepare(hand: Hand, count: int) -> None:
    """Connects, and prepares statements."""
    hand.ask("bulk", count=count, size=BULK)
    hand.ask("each", count=20)


def _sending(hand: Hand, case: str, count: int, **options: int) -> float:
    return float(hand.ask(case, count=count, **options)) / count
