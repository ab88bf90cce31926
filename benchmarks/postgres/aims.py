"""What the project set out to reach on PostgreSQL, and what this run reached."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from benchmarks.common.cases.backlog import flatness
from benchmarks.common.cases.enqueue import EACH, FROM_TASKS, IN_BULK
from benchmarks.common.cases.order import fifo_share
from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS, RAW
from benchmarks.common.report import Section
from benchmarks.postgres.cases.held_snapshot import FREE, HELD
from benchmarks.postgres.subjects import PGQUEUER
from benchmarks.table import Aim, at_least


def aims(sections: Mapping[str, Section]) -> list[Aim]:
    """Of the cases that were run."""
    found = []
    if "drain" in sections:
        found += _drain(sections["drain"])
    if "enqueue" in sections:
        found += _enqueue(sections["enqueue"])
    if "order" in sections:
        found.append(fifo_share(sections["order"]))
    if "backlog" in sections:
        found.append(flatness(sections["backlog"]))
    if "held_snapshot" in sections:
        case = next(case for case in sections["held_snapshot"].cases if case.name.startswith(POSTROOM))
        found.append(at_least(0.7, median(case.ratios(HELD, FREE)), "drain with xmin held / free"))
    return found


def _drain(section: Section) -> list[Aim]:
    found = []
    for contender in (POSTROOM, POSTROOM_LISTS):
        best = section.best(contender)
        if PGQUEUER in section.contenders:
            found.append(at_least(3, best / section.best(PGQUEUER), f"drain: best of {contender} / best of pgqueuer"))
        found.append(at_least(0.6, best / section.best(RAW), f"drain: best of {contender} / best of raw"))
    return found


def _enqueue(section: Section) -> list[Aim]:
    if PGQUEUER not in section.contenders:
        return []
    bulk, tasks, each = section.case(IN_BULK), section.case(FROM_TASKS), section.case(EACH)
    ratio = median(bulk.ratios(POSTROOM, PGQUEUER))
    from_tasks, single = tasks.rate(POSTROOM) or 0, each.rate(PGQUEUER) or 1
    return [
        at_least(1.2, ratio, "bulk enqueue with deduplication / pgqueuer's without"),
        at_least(8, from_tasks / single, "enqueue from 100 tasks / pgqueuer's single enqueue"),
    ]
