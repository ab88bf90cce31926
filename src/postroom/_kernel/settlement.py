"""Settlements: what becomes of a claimed message. One verb of a store applies them, named constructors build them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, NamedTuple
from uuid import UUID

from postroom._kernel.message import Claim


class Held(NamedTuple):
    """A message named by what its sender called it, for callers that kept no claim. Checks the owner only."""

    owner: UUID
    message_id: str
    source: str | None = None


Target = Claim | Held
Verdict = Literal["done", "retry", "release", "dead"]


class Settlement(NamedTuple):
    """An outcome for one claimed message."""

    target: Target
    verdict: Verdict
    delay: timedelta | None = None
    error: str | None = None
    counts: bool = False
    """Of a dead verdict: whether the execution that led to it counts as an attempt. A retry always counts."""

    @classmethod
    def done(cls, target: Target) -> Settlement:
        # What its constructor does, without its cost: this is said of nearly every message.
        return tuple.__new__(cls, (target, "done", None, None, False))

    @classmethod
    def retry(cls, target: Target, *, delay: timedelta | None = None, error: str | None = None) -> Settlement:
        """Count an attempt and wait; without a delay, as the box's backoff says."""
        return cls(target, "retry", delay, error)

    @classmethod
    def release(cls, target: Target, *, delay: timedelta | None = None) -> Settlement:
        """Give it back without counting."""
        return cls(target, "release", delay)

    @classmethod
    def dead(cls, target: Target, *, error: str, counts: bool = False) -> Settlement:
        return cls(target, "dead", None, error, counts)


Settled = Sequence[bool]
"""One answer per settlement: True where the claim still held and the outcome was applied."""
