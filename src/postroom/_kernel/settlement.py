"""Settlements: the outcomes of claimed messages, as a store applies them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Self
from uuid import UUID

from postroom._kernel.message import Claim, Format


class NamedTarget(NamedTuple):
    """A claimed message by the id that its sender gave it, for a caller that kept no claim.

    A store checks the owner, and no fence.
    """

    owner: UUID
    message_id: str
    source: str | None = None


class Result(NamedTuple):
    """What a guarded handler returned, encoded. It becomes the payload of its record."""

    payload: str | bytes
    format: Format
    """One of RESULT_FORMATS."""


RESULT_FORMATS: tuple[Format, ...] = ("json", "bytes")
"""A record without a result has the format `text`."""

Target = Claim | NamedTarget
Verdict = Literal["done", "retry", "release", "dead"]


class Settlement(NamedTuple):
    """The outcome of one claimed message."""

    target: Target
    verdict: Verdict
    delay: timedelta | None = None
    error: str | None = None
    counts: bool = False
    """With the verdict `dead`: whether the last execution counts as an attempt. A retry always counts."""
    result: Result | None = None
    """With the verdict `done`: replaces the payload. Only records of a guard have one."""

    @classmethod
    def done(cls, target: Target, result: Result | None = None) -> Self:
        """The message was handled with success."""
        # Nearly all settlements are made here, and the constructor takes twice as long.
        return tuple.__new__(cls, (target, "done", None, None, False, result))

    @classmethod
    def retry(cls, target: Target, *, delay: timedelta | None = None, error: str | None = None) -> Self:
        """Counts an attempt and makes the message wait for `delay`; without one, as the backoff of its box says."""
        return cls(target, "retry", delay, error)

    @classmethod
    def release(cls, target: Target, *, delay: timedelta | None = None) -> Self:
        """Makes the message wait again and counts no attempt."""
        return cls(target, "release", delay)

    @classmethod
    def dead(cls, target: Target, *, error: str, counts: bool = False) -> Self:
        """Makes the message a dead letter."""
        return cls(target, "dead", None, error, counts)


class ClaimSettlement(Settlement):
    """The outcome of a message whose claim is known. Workers make no other settlements."""

    __slots__ = ()
    if TYPE_CHECKING:
        target: Claim


Settled = Sequence[bool]
"""One value for each settlement: True if the claim still held, so that the outcome is stored."""
