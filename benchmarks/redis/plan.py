"""How much is measured on Redis."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common import plan
from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.redis.subjects import ARQ, DRAMATIQ, SAQ, STREAQ, TASKIQ, TASKIQ_LISTS
from benchmarks.rounds import Rounds

BATCH = 500
"""Of the cases that do not vary it."""

_PEERS = {SAQ: 2_000, ARQ: 1_000, DRAMATIQ: 3_000, TASKIQ: 3_000, TASKIQ_LISTS: 3_000, STREAQ: 3_000}

MESSAGES = {
    "each": {RAW: 3_000, POSTROOM: 1_500, SAQ: 1_500, ARQ: 800, DRAMATIQ: 1_500, TASKIQ: 1_500, TASKIQ_LISTS: 1_500}
    | {STREAQ: 1_000},
    "tasks": {POSTROOM: 6_000, **_PEERS},
    "bulk": {RAW: 40_000, POSTROOM: 20_000, **_PEERS, STREAQ: 6_000},
    "drain": {RAW: 60_000, POSTROOM: 20_000, POSTROOM_LISTS: 40_000, **_PEERS, STREAQ: 1_500},
    "memory": {RAW: 20_000, POSTROOM: 20_000, **_PEERS},
    "costs": {RAW: 20_000, POSTROOM: 20_000, POSTROOM_LISTS: 20_000, **_PEERS},
}
"""Per run in a full run, by case and contender."""

BATCHES = {
    RAW: (1, 50, 500),
    POSTROOM: (1, 50, 500),
    POSTROOM_LISTS: (1, 50, 500),
    SAQ: (1, 50),
    ARQ: (1, 50),
    DRAMATIQ: (1, 50),
    TASKIQ: (1, 50, 500),
    TASKIQ_LISTS: (1, 50, 500),
    STREAQ: (1, 50, 500),
}
"""What each takes. For peers it is their concurrency, or their threads. At more than 50, saq and arq were as fast."""

ALL = tuple(BATCHES)


@dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
    note: int
    """By how much payloads are longer where memory is measured: they have a kilobyte then."""


FULL = Plan(
    name="full",
    rounds=Rounds(count=5, runs=1),
    share=1.0,
    messages_per_measurement=MESSAGES,
    takes=BATCHES,
    batches=(1, 50, 500),
    batch=BATCH,
    fewer={1: 10},
    pairs=(Rounds(count=3, runs=1), ALL),
    latencies=(4, 50),
    groups=(1, 100, 10_000),
    ordered=(20_000, 20_000),
    levels=(10**4, 10**5, 10**6),
    slices=(Rounds(count=5, runs=2), 10_000),
    note=1_024 - 110,
)

QUICK = Plan(
    name="quick",
    rounds=Rounds(count=2, runs=1),
    share=0.3,
    messages_per_measurement=MESSAGES,
    takes=BATCHES,
    batches=(1, 50, 500),
    batch=BATCH,
    fewer={1: 10},
    pairs=(Rounds(count=1, runs=1), (RAW, POSTROOM, POSTROOM_LISTS, DRAMATIQ, STREAQ)),
    latencies=(1, 25),
    groups=(1, 100, 10_000),
    ordered=(10_000, 5_000),
    levels=(10**4, 10**5),
    slices=(Rounds(count=2, runs=2), 5_000),
    note=1_024 - 110,
)
