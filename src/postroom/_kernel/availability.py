"""Rules for the time from which a waiting message can be claimed.

They serve every store: a time is an integer of microseconds or a datetime, as the store represents it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from postroom._kernel.policy import Delivery
from postroom._kernel.settlement import Settlement

Time = TypeVar("Time", int, datetime)


class Availability(NamedTuple, Generic[Time]):
    """When a waiting message can be claimed, and whether it is in the line of its FIFO group before that time."""

    available_at: Time | None
    """None: the message sleeps behind the first in its line. The store sets a time when it becomes the first."""
    delayed: bool = False
    """The message is in the line of its FIFO group only from `available_at` on: see `postroom._kernel.line`."""


def first_availability(due: Time | None, now: Time, *, in_line: bool, sleeps: bool = False) -> Availability[Time]:
    """Returns the availability of a message that enters the queue.

    `in_line`: it is a member of a FIFO group. `sleeps`: another member is in line before it.
    """
    if due is not None and due > now:
        return Availability(due, delayed=in_line)
    return Availability(None if sleeps else now)


def reschedule(
    current: Availability[Time], due: Time | None, now: Time, *, was_claimed: bool, in_line: bool
) -> Availability[Time]:
    """Returns the availability of a waiting message after its content was replaced.

    `due`: the due time of the new content. `was_claimed`: the message was claimed before, so `available_at` may be the
    end of a retry delay. A new due time can extend this delay and never shortens it.
    """
    available_at = current.available_at
    is_ahead = due is not None and due > now
    if was_claimed:
        if due is None or not is_ahead:
            return current
        return Availability(due if available_at is None else max(available_at, due), current.delayed)
    if is_ahead:
        return Availability(due, delayed=in_line)
    if available_at is not None and available_at > now:
        return Availability(now)
    return current


class GivenBack(NamedTuple):
    """What a settlement of `retry` or `release` does with a message."""

    attempt: int
    """Counted attempts, including this one if it counts."""
    delay: timedelta | None
    """The time until it can be claimed again. None: as soon as it is the first in its line."""


def give_back(delivery: Delivery, settlement: Settlement, attempt: int, *, in_line: bool) -> GivenBack:
    """Returns how long a message waits after `retry` or `release`, and its number of attempts.

    `attempt`: attempts that were counted before. A retry without a delay uses the backoff of the box.
    """
    delay = settlement.delay
    if settlement.verdict == "retry":
        attempt += 1
        if delay is None:
            delay = delivery.backoff.delay(attempt)
    if in_line and not delay:
        return GivenBack(attempt, None)
    return GivenBack(attempt, delay or timedelta())
