"""When a webhook is sent again: the published schedule, Retry-After, and the bound on requests in flight."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

SCHEDULE = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
"""The delays that Standard Webhooks recommends: with the first attempt ten, the default `max_attempts` of a box."""
JITTER = 0.2
_MOST_DEFERRED_SECONDS = 60.0
_SECONDS = re.compile(r"[0-9]{1,9}")


def next_delay(
    attempt: int, schedule: Sequence[timedelta], retry_after: timedelta | None, spread: float | None = None
) -> timedelta:
    """Returns the delay after a failed attempt: its slot ± 20 %, or what the endpoint asks for, between once and
    twice the slot.

    `attempt`: how many attempts failed before this one. `spread`: between -1 and 1, random by default.
    """
    slot = schedule[min(attempt, len(schedule) - 1)]
    if retry_after is not None:
        return min(max(retry_after, slot), 2 * slot)
    spread = random.uniform(-1, 1) if spread is None else spread  # noqa: S311 - spreads load
    return slot * (1 + JITTER * spread)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Returns the delay that a Retry-After header asks for, in seconds or as a date. None: it cannot be read."""
    if text is None:
        return None
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=int(text))
    try:
        at = parsedate_to_datetime(text)
        return max((at if at.tzinfo else at.replace(tzinfo=UTC)) - now, timedelta())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


class InFlight:
    """Bounds the requests to each endpoint that run at the same time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[str, int] = {}
        self._deferred: dict[str, int] = {}

    def enter(self, name: str) -> bool:
        """Takes a slot of an endpoint. Returns False if all are taken."""
        if self._running.get(name, 0) >= self._most:
            return False
        self._running[name] = self._running.get(name, 0) + 1
        return True

    def leave(self, name: str) -> None:
        """Frees a slot."""
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
            self._deferred.pop(name, None)

    def defer(self, name: str) -> timedelta:
        """Returns when a message that got no slot tries again: later, the more messages wait for this endpoint."""
        self._deferred[name] = self._deferred.get(name, 0) + 1
        seconds = min(1 + self._deferred[name] / self._most, _MOST_DEFERRED_SECONDS)
        return timedelta(seconds=seconds * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load
