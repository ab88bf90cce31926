"""How fast messages come in: one by one, from many tasks, in bulk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.postgres.crew import Hand
from benchmarks.postgres.plan import BULK, TASKS
from benchmarks.postgres.report import Section
from benchmarks.postgres.stage import Stage, present
from benchmarks.postgres.subjects import PEERS, PGQUEUER, POSTROOM, RAW

EACH, FROM_TASKS, IN_BULK = "one by one", f"from {TASKS} tasks", f"in bulk, {BULK:,} at once"


def enqueue(stage: Stage) -> Section:
    turns = stage.plan.turns
    with stage.hands(present((RAW, POSTROOM, *PEERS))) as hands:
        for name, hand in hands.items():
            hand.ask("bulk", count=stage.plan.messages("bulk", name), size=BULK)  # connects, and prepares statements
            hand.ask("each", count=20)

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
    return Section("enqueue", cases, ratios=((POSTROOM, RAW), (POSTROOM, PGQUEUER)))


def _sending(hand: Hand, case: str, count: int, **options: int) -> float:
    return float(hand.ask(case, count=count, **options)) / count
