"""Notifications to the workers of other processes."""

from __future__ import annotations

from typing import Protocol

from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Box


class Notifications(Protocol):
    """How the programs of an engine notify workers that a box may have messages to claim."""

    def send(self, box: Box) -> SqlProgram[None]:
        """Notifies when the transaction commits, which may be much later: it may be the caller's."""

    def send_soon(self, box: Box) -> SqlProgram[None]:
        """Notifies, unless this process has just notified for the same box."""


class NoNotifications:
    """For engines without notifications: workers poll."""

    def send(self, box: Box) -> SqlProgram[None]:
        yield from ()

    def send_soon(self, box: Box) -> SqlProgram[None]:
        yield from ()
