"""When a worker claims next, and how long it pauses after a failure of the store (docs/decisions/0006).

Why no wake-up is lost while a claim is under way: `wake` makes a claim due and increments a counter. A claim remembers
the value at which it began. If the value has changed when the claim returns, a message may have been stored after the
claim read the queue, so another claim is due at once, even if this one found nothing. An empty claim starts a pause
only if no wake-up came and no other claim was under way meanwhile. Polling ends the pause, also without a wake-up.

Times are those of the event loop's clock, in seconds.
"""

from __future__ import annotations

import asyncio
import math
from heapq import heappop, heappush
from typing import NamedTuple

MAX_DUE_TIMES = 10_000
"""Due times that are remembered."""
BACKOFF_SECONDS = (0.1, 5.0)
"""Pause after a failure of the store: the first, and the longest."""


def now() -> float:
    """Returns the time of the running event loop."""
    return asyncio.get_running_loop().time()


class ClaimStart(NamedTuple):
    """The state in which a claim began."""

    number: int
    wakeups: int
    overlapped: int
    """Claims that were under way already."""


class PollSchedule:
    """When to claim: at once after a full batch and after a wake-up, and after increasing pauses while claims return
    nothing."""

    def __init__(self, shortest: float, longest: float, between: float = 0.0) -> None:
        """`shortest`, `longest`: pauses after empty claims. `between`: the pause after every claim, which a wake-up
        does not shorten."""
        self._shortest, self._longest, self._between = shortest, longest, between
        self._pause = shortest
        self._at = self._not_before = 0.0
        self._begun = self._wakeups = 0
        self._due_times: list[float] = []
        """A heap: due times of messages that this process has put or settled. Polling finds the others."""
        self.under_way = 0
        """Claims that have begun and not ended."""
        self.has_more = False
        """Whether the last claim returned a full batch. The next claim then does not wait for the one under way."""

    def wake(self) -> None:
        """Makes a claim due: there may be messages. Also if a claim is under way, which may have come too early."""
        self._wakeups += 1
        self._at = 0.0

    def expect(self, at: float) -> bool:
        """Makes a claim due at this time. Returns False if there are too many due times to remember it."""
        if len(self._due_times) == MAX_DUE_TIMES:
            return False
        heappush(self._due_times, at)
        return True

    def is_due(self, at: float) -> bool:
        """Returns True if a claim is due at this time."""
        while self._due_times and self._due_times[0] <= at:
            heappop(self._due_times)
            self.wake()
        return at >= self._at and at >= self._not_before

    @property
    def next_at(self) -> float:
        """When a claim will be due, as far as is known now."""
        return max(min([self._at, *self._due_times[:1]]), self._not_before)

    def begin(self) -> ClaimStart:
        """A claim begins."""
        self.under_way += 1
        self._begun += 1
        if self._between:
            self._not_before = math.inf
        return ClaimStart(self._begun, self._wakeups, self.under_way - 1)

    def end(self) -> None:
        """A claim has ended, with or without an error."""
        self.under_way -= 1
        if self._between:
            self._not_before = 0.0

    def learn(self, start: ClaimStart, found: int, limit: int, at: float, *, polls: bool, more: bool = False) -> None:
        """Decides from the result of a claim when the next one is due.

        `more`: there may be more messages, although the claim found fewer than its limit. Without `polls`, an empty
        claim is not repeated before a wake-up.
        """
        self.has_more = more or found == limit
        if self._between and polls:
            self._not_before = at + self._between
        pause = self._pause_after(found, polls=polls)
        # An empty claim that overlapped another proves nothing: the other may have locked rows that it did not take.
        was_alone = not start.overlapped and self._begun == start.number
        if self._wakeups == start.wakeups:
            self._at = at + (pause if found or was_alone else 0)

    def _pause_after(self, found: int, *, polls: bool) -> float:
        if found:
            self._pause = self._shortest
            return 0 if self.has_more or not polls else self._shortest
        if not polls:
            return math.inf
        pause, self._pause = self._pause, min(self._pause * 2, self._longest)
        return pause


class StoreBackoff:
    """The pause after a failure of the store: twice as long after each failure in a row."""

    def __init__(self) -> None:
        self.seconds = BACKOFF_SECONDS[0]
        self.until = 0.0

    def begin(self, at: float) -> None:
        """The store has failed."""
        self.until = at + self.seconds
        self.seconds = min(self.seconds * 2, BACKOFF_SECONDS[1])

    def end(self) -> None:
        """The store works."""
        self.seconds, self.until = BACKOFF_SECONDS[0], 0.0
