"""Where the claimable rows begin.

While an old transaction keeps PostgreSQL from cleaning up, every claim would walk over all that was claimed before it:
those rows are gone, but their index entries are not. So a claim remembers how far the last one got, and begins there.
That is only a hint: whenever it finds too little, and at least once a second, it looks from the very beginning.
"""

from __future__ import annotations

import time
from datetime import datetime

SECONDS = 1.0


class Frontier:
    """For the boxes of one store. Wrong only for a moment: rows behind it are found by the next full look."""

    def __init__(self, *, trusted: bool = True) -> None:
        self._marks: dict[str, tuple[datetime, float]] = {}
        self._trusted = trusted

    def since(self, box: str) -> datetime | None:
        """From where to look; None is from the beginning."""
        mark = self._marks.get(box)
        if mark is None or time.monotonic() > mark[1]:
            return None
        return mark[0]

    def advance(self, box: str, since: datetime | None, last: datetime | None) -> None:
        """After a look from `since`, which ended at `last`; None where it found less than it was asked for."""
        if not self._trusted or last is None:
            self._marks.pop(box, None)
        else:
            deadline = self._marks[box][1] if since is not None and box in self._marks else time.monotonic() + SECONDS
            self._marks[box] = (last, deadline)
