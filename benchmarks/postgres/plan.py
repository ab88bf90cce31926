"""How much is measured on PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common import plan
from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.postgres.subjects import AWA, PGQUEUER, PROCRASTINATE, SAQ
from benchmarks.rounds import Rounds

BATCH = 100
"""Of the cases that do not vary it."""

MESSAGES = {
    "each": {RAW: 300, POSTROOM: 300, PGQUEUER: 300, PROCRASTINATE: 100, SAQ: 150, AWA: 100},
    "tasks": {POSTROOM: 4_000, PGQUEUER: 1_000, PROCRASTINATE: 500, SAQ: 500, AWA: 300},
    "bulk": {RAW: 10_000, POSTROOM: 10_000, PGQUEUER: 10_000, PROCRASTINATE: 1_000, SAQ: 500, AWA: 3_000},
    "drain": {
        RAW: 20_000,
        POSTROOM: 20_000,
        POSTROOM_LISTS: 20_000,
        PGQUEUER: 10_000,
        PROCRASTINATE: 400,
        SAQ: 400,
        AWA: 4_000,
    },
    "flow": {RAW: 10_000, POSTROOM: 10_000, PGQUEUER: 10_000},
}
"""Per run in a full run, by case and contender."""

BATCHES = {
    RAW: (10, 50, 100, 500, 1_000),
    POSTROOM: (10, 50, 100, 500, 1_000),
    POSTROOM_LISTS: (10, 50, 100, 500, 1_000),
    PGQUEUER: (10, 50, 100, 500, 1_000),
    PROCRASTINATE: (10, 50),
    SAQ: (10,),
    AWA: (10, 50, 100, 500),
}
"""What each takes. For procrastinate and saq it is their concurrency: more of it was no faster."""


ALL = tuple(BATCHES)


@dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
    held: tuple[Rounds, dict[str, int]]
    """Rounds, and messages per run."""
    counted: tuple[int, tuple[str, ...]]
    """Messages of which WAL, commits and statements are counted (of slow contenders, one run's worth), and whose."""
    flow: dict[str, int]


FULL = Plan(
    name="full",
    rounds=Rounds(count=5, runs=1),
    share=1.0,
    messages_per_measurement=MESSAGES,
    takes=BATCHES,
    batch=BATCH,
    fewer={10: 4},
    batches=(10, 50, 100, 500, 1_000),
    pairs=(Rounds(count=3, runs=1), ALL),
    latencies=(4, 50),
    groups=(1, 100, 10_000, 100_000),
    ordered=(20_000, 10_000),
    levels=(10**4, 10**5, 10**6),
    slices=(Rounds(count=5, runs=2), 5_000),
    held=(Rounds(count=3, runs=1), {RAW: 100_000, POSTROOM: 100_000, PGQUEUER: 20_000}),
    counted=(20_000, ALL),
    flow={RAW: 10**6, POSTROOM: 10**6, PGQUEUER: 10**5},
)

QUICK = Plan(
    name="quick",
    rounds=Rounds(count=2, runs=1),
    share=0.3,
    messages_per_measurement=MESSAGES,
    takes=BATCHES,
    batch=BATCH,
    fewer={10: 4},
    batches=(10, 100, 500),
    pairs=(Rounds(count=1, runs=1), (RAW, POSTROOM, PGQUEUER)),
    latencies=(1, 25),
    groups=(1, 100, 10_000),
    ordered=(10_000, 3_000),
    levels=(10**4, 10**5),
    slices=(Rounds(count=2, runs=2), 4_000),
    held=(Rounds(count=1, runs=1), {POSTROOM: 100_000}),
    counted=(4_000, (RAW, POSTROOM, PGQUEUER)),
    flow={POSTROOM: 10**5},
)
