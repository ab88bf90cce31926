"""Whether a message costs more because more messages wait."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.common.cases.order import exchange
from benchmarks.common.crew import Hand
from benchmarks.common.lineup import POSTROOM, RAW
from benchmarks.common.report import Section
from benchmarks.common.stage import Stage, stderr
from benchmarks.rounds import Case
from benchmarks.table import Aim

FILL, PIECE = 5_000, 100_000


def backlog(stage: Stage, *, shared: bool) -> Section:
    """The levels, which are compared, take turns. Where the raw loop knows our tables, both work on one backlog."""
    turns, count = stage.plan.slices
    batch = stage.plan.batch
    hands: dict[tuple[int, str], Hand] = {}
    with ExitStack() as stack:
        for level in stage.plan.levels:
            stderr.print(f"  filling {level:,}")
            place = stage.place()
            for contender in (POSTROOM, RAW):
                place = place if shared else stage.place()
                fills = contender == POSTROOM or not shared
                hand = stack.enter_context(stage.hand(contender, place, install=fills))
                hands[level, contender] = hand
                if fills:
                    _fill(hand, level)
                    stage.settle(place)
        for hand in hands.values():
            exchange(hand, batch, batch)  # prepares statements
        contenders = {
            f"{contender} {level}": partial(exchange, hand, batch, count) for (level, contender), hand in hands.items()
        }
        rates = stage.run(f"{', '.join(f'{level:,}' for level in stage.plan.levels)} waiting", turns, contenders).rates
    cases = [
        Case(f"{level:,} waiting", {contender: rates[f"{contender} {level}"] for contender in (RAW, POSTROOM)})
        for level in stage.plan.levels
    ]
    return Section(f"drain in batches of {batch}, by backlog", cases, ratios=((POSTROOM, RAW),))


def _fill(hand: Hand, level: int) -> None:
    for start in range(0, level, PIECE):  # each in less time than a worker may take
        hand.ask("fill", count=min(PIECE, level - start), size=FILL)


def flatness(section: Section) -> Aim:
    """Whether a message costs the same from the smallest level to the third."""
    cases = section.cases[:3]
    rates = [case.rate(POSTROOM) or 0 for case in cases]
    factor = max(rates) / min(rates)
    levels = f"{cases[0].name} to {cases[-1].name}"
    return Aim(f"dearest backlog / cheapest, {levels}, at most 1.3", factor, factor <= 1.3)
