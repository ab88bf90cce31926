"""Where the cases run: a separate PostgreSQL server, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import quantiles

from tools.servers.postgres import PostgresServer

from benchmarks.common.report import Section
from benchmarks.many.plan import Plan
from benchmarks.table import Aim


@dataclass
class Environment:
    plan: Plan
    server: PostgresServer
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """What a case has found."""

    section: Section
    aims: list[Aim]


def at_most(wanted: float, value: float, text: str) -> Aim:
    return Aim(f"{text} at most {wanted:g}", value, value <= wanted)


def percentile(samples: list[float], percent: int) -> float:
    return quantiles(samples, n=100, method="inclusive")[percent - 1]
