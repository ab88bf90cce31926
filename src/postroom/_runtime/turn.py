"""A turn: what a worker may do while it visits one of many stores (decision 0016)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Turn(Protocol):
    """Limits a visit, and learns how it goes."""

    limit: int
    """How many messages a claim may take."""
    slots: AbstractAsyncContextManager[object]
    """Entered while a handler runs: all visits to the stores of a box share the slots."""

    def claimed(self, count: int) -> bool:
        """Called after each claim that found messages. Returns False if the visit claims no more."""

    def failed(self, error: Exception) -> None:
        """Called after a failed exchange, while the visit keeps outcomes that must be stored."""

    def recovered(self) -> None:
        """Called after an exchange that succeeded."""
