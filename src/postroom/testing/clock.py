"""A clock for tests: it moves only by `advance`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FrozenClock:
    """A clock that stands still. Pass it as `clock` to a room or a store, and move it with `advance`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        """Returns the time at which the clock stands."""
        return self._now

    def advance(self, delta: timedelta | float) -> None:
        """Moves the clock by a timedelta, or by seconds."""
        self._now += delta if isinstance(delta, timedelta) else timedelta(seconds=delta)
