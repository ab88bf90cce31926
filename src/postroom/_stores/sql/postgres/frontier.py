"""Where the claimable rows of a box begin in the ready index.

While an old transaction keeps VACUUM from removing dead rows, a claim that reads the index from its beginning passes
the entries of all rows that were claimed and deleted before. So a claim begins behind the last row of the claim before
it. Rows that are claimed now are before this position, too.

A row with an earlier position may become claimable. So a claim begins at the beginning if it finds too few rows, and at
least once in SECONDS.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

SECONDS = 1.0


class IndexPosition(NamedTuple):
    """The position of a row in the ready index."""

    available_at: datetime | None
    id: int


BEGINNING = IndexPosition(None, 0)


class Frontier:
    """The positions behind which the claims of one store begin, by box."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._positions: dict[str, tuple[IndexPosition, float]] = {}
        """The position of each box, and the time at which it is too old."""

    def since(self, box: str) -> IndexPosition:
        """Returns the position behind which the next claim begins."""
        found = self._positions.get(box)
        if found is None or time.monotonic() > found[1]:
            return BEGINNING
        return found[0]

    def advance(self, box: str, since: IndexPosition, last: IndexPosition | None) -> None:
        """Notes that a claim began behind `since` and ended at `last`; None: it found too few rows."""
        if not self._enabled or last is None:
            self._positions.pop(box, None)
        else:
            goes_on = since != BEGINNING and box in self._positions
            self._positions[box] = (last, self._positions[box][1] if goes_on else time.monotonic() + SECONDS)
