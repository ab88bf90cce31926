"""When a process notifies workers that a box has messages.

NOTIFY takes a lock that all commits of the server share. So a transaction notifies once, and a process notifies for a
box at most once in WINDOW_SECONDS seconds. A listener wakes the workers of the box when it is notified, and again after
REPEAT_SECONDS seconds: then the messages are committed for which no notification was sent.

A notification only saves time. A worker that gets none finds the messages when it polls.
"""

from __future__ import annotations

import time

from postroom._stores.sql.statements import SqlProgram, Statement
from postroom.spi import Box

WINDOW_SECONDS = 0.002
"""Seconds in which a process notifies for a box once."""
REPEAT_SECONDS = 0.015
"""Seconds after which a listener wakes workers again: longer than WINDOW_SECONDS and a commit."""


class PostgresNotifications:
    """The notifications of one store."""

    def __init__(self, channel: str, *, enabled: bool) -> None:
        self.channel = channel
        self._enabled = enabled
        self._sent: dict[str, float] = {}
        """The time of the last notification for each box."""

    def should_notify(self, box: Box, *, in_caller_tx: bool) -> bool:
        """Returns True if a transaction that brings messages must notify. The caller's transaction may commit at any
        time, when no other notification is near, so it always notifies."""
        if not self._enabled or in_caller_tx:
            return self._enabled
        now = time.monotonic()
        if now - self._sent.get(box.key, -WINDOW_SECONDS) < WINDOW_SECONDS:
            return False
        self._sent[box.key] = now
        return True

    def send(self, box: Box) -> SqlProgram[None]:
        if self._enabled:
            yield Statement("notify", {"channel": self.channel, "box": box.key})

    def send_soon(self, box: Box) -> SqlProgram[None]:
        if self.should_notify(box, in_caller_tx=False):
            yield from self.send(box)
