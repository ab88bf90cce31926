"""What order costs: FIFO boxes with few and with many groups, beside boxes without order."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.postgres.crew import Hand
from benchmarks.postgres.plan import BATCH, BULK
from benchmarks.postgres.report import Section
from benchmarks.postgres.stage import Stage, stderr
from benchmarks.postgres.subjects import POSTROOM, RAW
from benchmarks.rounds import Case

FIFO, UNORDERED, RAW_UNORDERED = "postroom, fifo", "postroom, unordered", "raw, unordered"


def order(stage: Stage) -> Section:
    plan = stage.plan
    standing, count = plan.ordered
    with ExitStack() as stack:
        hands: dict[str, Hand] = {
            RAW_UNORDERED: stack.enter_context(stage.hand(RAW)),
            UNORDERED: stack.enter_context(stage.hand(POSTROOM)),
            **{name(groups): stack.enter_context(stage.hand(POSTROOM, groups=groups)) for groups in plan.groups},
        }
        stderr.print("  filling FIFO boxes")
        for hand, groups in zip(hands.values(), (0, 0, *plan.groups), strict=True):
            hand.ask("fill", count=max(standing, groups), size=BULK)
        turns = {each: partial(exchange, hand, count) for each, hand in hands.items()}
        rates = stage.run("FIFO", plan.turns, turns).rates
    cases = [
        Case(
            name(groups),
            {RAW_UNORDERED: rates[RAW_UNORDERED], UNORDERED: rates[UNORDERED], FIFO: rates[name(groups)]},
        )
        for groups in plan.groups
    ]
    return Section(f"order: drain in batches of {BATCH}", cases, ratios=((FIFO, UNORDERED),))


def name(groups: int) -> str:
    return f"{groups:,} group{'s' if groups > 1 else ''}"


def exchange(hand: Hand, count: int) -> float:
    """Handle some of the backlog, then send as many: it stays as long as it is."""
    seconds = hand.take(BATCH, count)
    hand.ask("fill", count=count, size=BULK)
    return seconds
