"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    name: str
    files: int
    databases: int
    idle_seconds: float
    """Longer than the pause between two looks at a store, which is two minutes."""
    first_messages: int
    """First messages in quiet stores, of each kind."""
    skew_seconds: float
    unreachable_rounds: int
    changes: int
    """How many times a store is replaced."""
    one_store_rounds: int


FULL = Plan(
    name="full",
    files=1000,
    databases=100,
    idle_seconds=300,
    first_messages=300,
    skew_seconds=40,
    unreachable_rounds=7,
    changes=200,
    one_store_rounds=9,
)
QUICK = Plan(
    name="quick",
    files=300,
    databases=30,
    idle_seconds=140,
    first_messages=60,
    skew_seconds=10,
    unreachable_rounds=3,
    changes=50,
    one_store_rounds=3,
)
