"""Whether a message costs more because more messages wait."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.postgres.cases.order import exchange
from benchmarks.postgres.crew import Hand
from benchmarks.postgres.plan import BATCH
from benchmarks.postgres.report import Section
from benchmarks.postgres.stage import Stage, stderr
from benchmarks.postgres.subjects import POSTROOM, RAW
from benchmarks.rounds import Case

FILL, PIECE = 5_000, 100_000


def backlog(stage: Stage) -> Section:
    """Postroom and the raw loop work on the same backlog, in turns; the levels, which are compared, take turns too."""
    turns, count = stage.plan.slices
    hands: dict[tuple[int, str], Hand] = {}
    with ExitStack() as stack:
        for level in stage.plan.levels:
            stderr.print(f"  filling {level:,}")
            database = stage.database()
            for contender in (POSTROOM, RAW):
                hands[level, contender] = stack.enter_context(
                    stage.hand(contender, database, install=contender == POSTROOM)
                )
            for start in range(0, level, PIECE):  # each in less time than a worker may take
                hands[level, POSTROOM].ask("fill", count=min(PIECE, level - start), size=FILL)
            stage.query(database, "VACUUM ANALYZE")
        for hand in hands.values():
            exchange(hand, BATCH)  # prepares statements
        contenders = {
            f"{contender} {level}": partial(exchange, hand, count) for (level, contender), hand in hands.items()
        }
        rates = stage.run(f"{', '.join(f'{level:,}' for level in stage.plan.levels)} waiting", turns, contenders).rates
    cases = [
        Case(f"{level:,} waiting", {contender: rates[f"{contender} {level}"] for contender in (RAW, POSTROOM)})
        for level in stage.plan.levels
    ]
    return Section(f"drain in batches of {BATCH}, by backlog", cases, ratios=((POSTROOM, RAW),))
