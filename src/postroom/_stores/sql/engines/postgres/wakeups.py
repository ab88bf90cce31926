"""When to tell workers that there is work.

A notification takes a lock that all commits of the server share, so it is sent sparingly: once per commit, and not
again within WINDOW. Who listens looks once more when that has passed, for what came without one.
"""

from __future__ import annotations

import time

WINDOW = 0.002
"""Seconds in which a process tells of a box once."""
AGAIN = 0.015
"""Seconds after which a listener looks again: the window, and a commit."""


class Wakeups:
    """What one store has told of its boxes."""

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._told: dict[str, float] = {}

    def tells(self, box: str, *, joined: bool) -> bool:
        """Whether to tell now. A caller's transaction may commit at any time: what it brings is always told."""
        if not self._on or joined:
            return self._on
        now = time.monotonic()
        if now - self._told.get(box, -WINDOW) < WINDOW:
            return False
        self._told[box] = now
        return True
