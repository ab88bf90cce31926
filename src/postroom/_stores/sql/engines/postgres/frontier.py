"""Where the claimable rows begin.

While an old transaction keeps PostgreSQL from cleaning up, every claim would walk over all that was claimed before it:
those rows are gone, but their index entries are not. So a claim remembers how far the last one got, and begins there.
What is claimed stays in its place, and is passed by as well. That is only a hint: whenever it finds too little, and at
least once a second, a claim looks from the very beginning.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

SECONDS = 1.0


class Place(NamedTuple):
    """Of a row, in the index of what can be claimed."""

    available_at: datetime | None
    id: int


BEGINNING = Place(None, 0)


class Frontier:
    """For the boxes of one store. Wrong only for a moment: rows behind it are found by the next full look."""

    def __init__(self, *, trusted: bool = True) -> None:
        self._marks: dict[str, tuple[Place, float]] = {}
        self._trusted = trusted

    def since(self, box: str) -> Place:
        """Behind which to look."""
        mark = self._marks.get(box)
        if mark is None or time.monotonic() > mark[1]:
            return BEGINNING
        return mark[0]

    def advance(self, box: str, since: Place, last: Place | None) -> None:
        """After a look behind `since`, which ended at `last`; None where it found less than it was asked for."""
        if not self._trusted or last is None:
            self._marks.pop(box, None)
        else:
            goes_on = since != BEGINNING and box in self._marks
            self._marks[box] = (last, self._marks[box][1] if goes_on else time.monotonic() + SECONDS)
