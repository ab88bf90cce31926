"""What the project set out to reach on Redis, and what this run reached."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common.cases.backlog import flatness
from benchmarks.common.cases.enqueue import IN_BULK
from benchmarks.common.cases.order import fifo_share
from benchmarks.common.contenders import POSTROOM, POSTROOM_LISTS
from benchmarks.common.report import Section
from benchmarks.redis.subjects import CONTENDERS, UNSAFE
from benchmarks.table import Aim, at_least


def aims(sections: Mapping[str, Section]) -> list[Aim]:
    """Of the cases that were run."""
    found = []
    for name, settings in (("drain", ""), ("drain-log", ", with a log")):
        if name in sections:
            found += _drain(sections[name], settings)
    for name, settings in (("enqueue", ""), ("enqueue-log", ", with a log")):
        if name in sections:
            found += _enqueue(sections[name], settings)
    if "order" in sections:
        found.append(fifo_share(sections["order"]))
    if "backlog" in sections:
        found.append(flatness(sections["backlog"]))
    return found


def _drain(section: Section, settings: str) -> list[Aim]:
    """The best batch size of each, against the best peer that loses nothing."""
    peers = _peers(section)
    if not peers:
        return []
    best = max(peers, key=section.best)
    text = f"drain{settings}: best of {{}} / best of {best}, the fastest peer,"
    return [
        at_least(10, section.best(POSTROOM_LISTS) / section.best(best), text.format(POSTROOM_LISTS)),
        at_least(3, section.best(POSTROOM) / section.best(best), text.format(POSTROOM)),
        _single(section, settings, peers),
    ]


def _single(section: Section, settings: str, peers: list[str]) -> Aim:
    """The stricter reading of "one by one": not only is the handler called for each, each is claimed alone too."""
    case = section.cases[0]
    best = max(peers, key=lambda name: case.rate(name) or 0)
    text = f"drain{settings}, {case.name}: {POSTROOM} / {best}, the fastest peer there,"
    return at_least(3, (case.rate(POSTROOM) or 0) / (case.rate(best) or 1), text)


def _enqueue(section: Section, settings: str) -> list[Aim]:
    case = section.case(IN_BULK)
    peers = _peers(section)
    if not peers:
        return []
    best = max(peers, key=lambda name: case.rate(name) or 0)
    text = f"bulk enqueue{settings}, with deduplication / {best}, the fastest peer,"
    return [at_least(5, (case.rate(POSTROOM) or 0) / (case.rate(best) or 1), text)]


def _peers(section: Section) -> list[str]:
    return [name for name in section.contenders if name in CONTENDERS.peers and name not in UNSAFE]
