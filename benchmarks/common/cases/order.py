"""What order costs: FIFO boxes with few and with many groups, beside boxes without order."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median

from benchmarks.common.crew import Hand
from benchmarks.common.lineup import POSTROOM, RAW
from benchmarks.common.plan import BULK
from benchmarks.common.report import Section
from benchmarks.common.stage import Stage, stderr
from benchmarks.rounds import Case
from benchmarks.table import Aim, at_least

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
        turns = {each: partial(exchange, hand, plan.batch, count) for each, hand in hands.items()}
        rates = stage.run("FIFO", plan.turns, turns).rates
    cases = [
        Case(
            name(groups),
            {RAW_UNORDERED: rates[RAW_UNORDERED], UNORDERED: rates[UNORDERED], FIFO: rates[name(groups)]},
        )
        for groups in plan.groups
    ]
    return Section(f"order: drain in batches of {plan.batch}", cases, ratios=((FIFO, UNORDERED),))


def name(groups: int) -> str:
    return f"{groups:,} group{'s' if groups > 1 else ''}"


def exchange(hand: Hand, batch: int, count: int) -> float:
    """Handle some of the backlog, then send as many: it stays as long as it is."""
    seconds = hand.take(batch, count)
    hand.ask("fill", count=count, size=BULK)
    return seconds


def fifo_share(section: Section) -> Aim:
    ratio = median(section.case(name(10_000)).ratios(FIFO, UNORDERED))
    return at_least(0.5, ratio, "FIFO over 10,000 groups / unordered")
