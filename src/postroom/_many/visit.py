"""A visit: the work of a dispatcher in one store, from its first claim to the last outcome."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from postroom._many.tenant import Tenant
from postroom._runtime.pump import Pump
from postroom._runtime.schedule import now


class Observer(Protocol):
    """The dispatcher, as a visit sees it."""

    def goes_on(self, visit: Visit, claimed: int) -> bool:
        """Returns whether the visit may claim again."""

    def visit_failed(self, visit: Visit, error: Exception) -> None: ...
    def visit_recovered(self, visit: Visit) -> None: ...


class HandlerTime(AbstractAsyncContextManager[None]):
    """Holds a slot of the box while a handler runs, and measures the time."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._running = 0
        self._since = 0.0
        self._seconds = 0.0

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._count(1)

    async def __aexit__(self, *error: object) -> None:
        self._count(-1)
        self._slots.release()

    def _count(self, change: int) -> None:
        at = now()
        self._seconds += self._running * (at - self._since)
        self._running += change
        self._since = at

    def take(self) -> float:
        """Returns the seconds since the last call."""
        self._count(0)
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Visit:
    """A `Turn` of one store."""

    def __init__(self, tenant: Tenant, dispatcher: Observer, slots: asyncio.Semaphore, limit: int) -> None:
        self.tenant = tenant
        self._dispatcher = dispatcher
        self.time = HandlerTime(slots)
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
        self.has_more = not self._dispatcher.goes_on(self, count)
        return not self.has_more

    def failed(self, error: Exception) -> None:
        self._dispatcher.visit_failed(self, error)

    def recovered(self) -> None:
        self._dispatcher.visit_recovered(self)
