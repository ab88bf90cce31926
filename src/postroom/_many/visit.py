"""A visit: the work of a dispatcher in one store, from its first claim to the last outcome."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from postroom._many.slots import HandlerTime, Slots
from postroom._many.tenant import Tenant
from postroom._runtime.pump import Pump


class VisitObserver(Protocol):
    """The dispatcher, as a visit sees it."""

    def may_claim_again(self, visit: Visit, claimed: int) -> bool:
        """Returns whether the visit may claim again."""

    def visit_failed(self, visit: Visit, error: Exception) -> None: ...
    def visit_recovered(self, visit: Visit) -> None: ...


class Visit:
    """A `VisitControl` of one store."""

    def __init__(self, tenant: Tenant, dispatcher: VisitObserver, slots: Slots, limit: int) -> None:
        self.tenant = tenant
        self._dispatcher = dispatcher
        self.time = HandlerTime(slots, tenant.config.weight)
        self.slots: AbstractAsyncContextManager[object] = self.time
        self.limit = limit
        self.total = 0
        """Messages that were claimed so far."""
        self.pump: Pump | None = None
        self.is_stopped = False
        self.is_detached = False
        """Whether it no longer takes the place of another visit, because its store does not respond."""
        self.has_more = False
        """Whether it has ended before the store was empty."""

    def stop(self) -> None:
        """Claims no more, and releases what is not begun."""
        self.is_stopped = True
        if self.pump is not None:
            self.pump.stop()

    def claimed(self, count: int) -> bool:
        self.total += count
        self.has_more = not self._dispatcher.may_claim_again(self, count)
        return not self.has_more

    def failed(self, error: Exception) -> None:
        self._dispatcher.visit_failed(self, error)

    def recovered(self) -> None:
        self._dispatcher.visit_recovered(self)
