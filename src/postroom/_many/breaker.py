"""The circuit breaker of a store: how long a store that has failed is left alone."""

from __future__ import annotations

import random

SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0


class Breaker:
    """Open after a failure, until a visit succeeds, or a look that finds no work. The pauses double, with jitter."""

    __slots__ = ("_seconds", "opened_at", "until")

    def __init__(self) -> None:
        self._seconds = SHORTEST_SECONDS
        self.opened_at: float | None = None
        """When it opened; None while it is closed."""
        self.until = 0.0
        """When a look may try the store again."""

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None

    def fail(self, now: float) -> bool:
        """Returns True if it was closed."""
        was_closed = not self.is_open
        if was_closed:
            self.opened_at = now
        if was_closed or now >= self.until:  # two failures of the same moment count once
            self.until = now + self._seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing
            self._seconds = min(self._seconds * 2, LONGEST_SECONDS)
        return was_closed

    def succeed(self) -> float | None:
        """Closes it. Returns when it had opened; None if it was closed."""
        opened_at, self.opened_at = self.opened_at, None
        self._seconds, self.until = SHORTEST_SECONDS, 0.0
        return opened_at
