"""When a pump claims again, and when it leaves a store that failed alone (docs/decisions/0006).

Times are those of the event loop's clock, in seconds.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import NamedTuple

MOST_DUES = 10_000
"""Moments that are remembered, at which something becomes ready."""
TROUBLE = (0.1, 5.0)
"""Seconds of rest after the store failed: at first, and at most."""


class Begun(NamedTuple):
    """What was known when a claim began."""

    number: int
    hints: int
    beside: int
    """Claims that were under way already."""


class Pace:
    """At once while there is plenty, later and later while there is nothing, and whenever something tells otherwise."""

    def __init__(self, shortest: float, longest: float, between: float = 0.0) -> None:
        """`between`: the pause after every claim, which no hint cuts short."""
        self._shortest, self._longest, self._between = shortest, longest, between
        self._pause = shortest
        self._at = self._not_before = 0.0
        self._begun = self._hints = 0
        self._dues: list[float] = []
        """A heap: when something that is known here becomes ready. Of others' messages polling tells."""
        self.under_way = 0
        self.is_plenty = False
        """Whether the last claim came back full: then the next need not wait for the one that is under way."""

    def hint(self) -> None:
        """There may be something to claim. A claim that is under way may have been too early for it."""
        self._hints += 1
        self._at = 0.0

    def expect(self, at: float) -> bool:
        """There will be something to claim then. Answers whether it is remembered."""
        if len(self._dues) == MOST_DUES:
            return False
        heappush(self._dues, at)
        return True

    def is_time(self, now: float) -> bool:
        while self._dues and self._dues[0] <= now:
            heappop(self._dues)
            self.hint()
        return now >= self._at and now >= self._not_before

    @property
    def next(self) -> float:
        """When it will be time, as far as is known."""
        return max(min([self._at, *self._dues[:1]]), self._not_before)

    def begin(self) -> Begun:
        self.under_way += 1
        self._begun += 1
        if self._between:
            self._not_before = math.inf
        return Begun(self._begun, self._hints, self.under_way - 1)

    def end(self) -> None:
        """Of a claim, however it ended."""
        self.under_way -= 1
        if self._between:
            self._not_before = 0.0

    def learn(self, begun: Begun, found: int, limit: int, now: float, *, polls: bool, more: bool = False) -> None:
        """What a claim has shown. `more`: there may be more, though it found less than it asked for. Without `polls`,
        one that was empty is not repeated before a hint."""
        self.is_plenty = more or found == limit
        if self._between and polls:
            self._not_before = now + self._between
        pause = self._pause_after(found, polls=polls)
        # One that was empty beside another proves nothing: that one may have kept from it what it did not take.
        is_proof = found or (not begun.beside and self._begun == begun.number)
        if self._hints == begun.hints:
            self._at = now + (pause if is_proof else 0)

    def _pause_after(self, found: int, *, polls: bool) -> float:
        if found:
            self._pause = self._shortest
            return 0 if self.is_plenty or not polls else self._shortest
        if not polls:
            return math.inf
        pause, self._pause = self._pause, min(self._pause * 2, self._longest)
        return pause


class Rest:
    """After an error of the store: longer each time."""

    def __init__(self) -> None:
        self.seconds = TROUBLE[0]
        self.until = 0.0

    def begin(self, now: float) -> None:
        self.until = now + self.seconds
        self.seconds = min(self.seconds * 2, TROUBLE[1])

    def end(self) -> None:
        """The store has answered."""
        self.seconds, self.until = TROUBLE[0], 0.0
