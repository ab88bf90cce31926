"""The limits of a visit (decision 0016).

A *visit* is the run of a pump in one of many stores. It ends when the store has nothing more to claim, or when the next
batch belongs to another store, and its last outcome is stored.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class VisitControl(Protocol):
    """Limits a visit, and is called with its progress. The visit in `postroom._many` implements it."""

    limit: int
    """How many messages the next claim may take."""
    slots: AbstractAsyncContextManager[object]
    """Entered while a handler runs: all visits to the stores of a box share the slots."""

    def claimed(self, count: int) -> bool:
        """Called after each claim that found messages. Returns False if the visit claims no more."""

    def failed(self, error: Exception) -> None:
        """Called after a failed exchange, while the visit keeps outcomes that must be stored."""

    def recovered(self) -> None:
        """Called after an exchange that succeeded."""
