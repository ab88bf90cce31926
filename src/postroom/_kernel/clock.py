"""The clock of stores without a server. Stores with a server use the clock of the server."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """Returns the time as an aware datetime in UTC."""

    def now(self) -> datetime:
        """Returns the current time."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Returns the time of this machine, in UTC."""
        return from_microseconds(time.time_ns() // 1000)


def to_microseconds(moment: datetime) -> int:
    """Returns the microseconds since the epoch. They are exact, unlike a float of seconds."""
    return (moment - EPOCH) // _MICROSECOND


@lru_cache(maxsize=4096)  # messages that came together share their times
def from_microseconds(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)
