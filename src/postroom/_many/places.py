"""The places of one server: which stores are open, and which calls wait until a store of theirs can be opened."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Protocol

from postroom._many.tenant import OpenStore, Tenant


class Waiter(Protocol):
    """Waits until another thread or task calls `wake`."""

    def clear(self) -> None:
        """Forgets earlier calls of `wake`."""

    def wake(self) -> None: ...

    def wait(self, seconds: float) -> object:
        """Returns False if `wake` was not called in time."""


class SyncWaiter:
    """For threads."""

    def __init__(self) -> None:
        event = threading.Event()
        self.clear, self.wake, self.wait = event.clear, event.set, event.wait


class AsyncWaiter:
    """For tasks. `wake` may be called in another event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self.clear = self._event.clear

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                return await self._event.wait()
        return False


class StoreCall:
    """A call that needs the store of a tenant."""

    __slots__ = ("is_visit", "needs_place", "tenant", "waiter")

    def __init__(self, tenant: Tenant, waiter: Waiter, *, is_visit: bool) -> None:
        self.tenant = tenant
        self.waiter = waiter
        self.is_visit = is_visit
        self.needs_place = not tenant.stays_open


class Places:
    """The open stores of one server, at most `limit`, and the calls that wait. The caller holds a lock.

    Visits use one place less, if there are several: the verbs that their handlers call need one too. Stores that stay
    open need no place.
    """

    def __init__(self, server: str, limit: int) -> None:
        self.server = server
        self._limit = limit
        self._visit_limit = max(limit - 1, 1)
        self.open: dict[str, Tenant] = {}
        """Those that were used least recently come first."""
        self.staying: dict[str, Tenant] = {}
        """The open stores that need no place."""
        self.waiting: dict[StoreCall, None] = {}
        """The calls that have not begun, in order."""

    def __len__(self) -> int:
        return len(self.open) + len(self.staying)

    def tenants(self) -> list[Tenant]:
        return [*self.open.values(), *self.staying.values()]

    def may_begin(self, call: StoreCall) -> bool:
        """Returns True if a waiting call is the first one that can begin.

        A verb of a store that is in use does not wait for the others: a handler may call it, and the others may wait
        for the end of that handler.
        """
        opened = call.tenant.opened
        if opened is not None and opened.calls and not call.is_visit:
            return True
        return self._first() is call

    def _first(self) -> StoreCall | None:
        if not self.waiting:
            return None
        is_free = len(self.open) < self._limit or any(map(_is_unused, self.open.values()))
        is_free_for_visits = sum(map(_is_visited, self.open.values())) < self._visit_limit
        for call in self.waiting:
            tenant = call.tenant
            if not call.needs_place:
                return call
            if (is_free or tenant.opened is not None) and (
                is_free_for_visits or not call.is_visit or _is_visited(tenant)
            ):
                return call
        return None

    def begin(self, call: StoreCall) -> tuple[OpenStore, list[OpenStore]]:
        """Begins a call. Returns its store, and stores that were removed, to be closed."""
        tenant, removed = call.tenant, list[OpenStore]()
        opened = tenant.opened
        if opened is None:
            opened = OpenStore(tenant.make(), self.server)
            removed = self._make_place() if call.needs_place else []
            tenant.opened = opened
        places = self.open if call.needs_place else self.staying
        places[tenant.key] = places.pop(tenant.key, tenant)
        opened.calls += 1
        opened.visits += call.is_visit
        return opened, removed

    def _make_place(self) -> list[OpenStore]:
        """Removes stores that are idle for too long, and one more if all places are taken."""
        removed = self.remove_idle()
        if len(self.open) >= self._limit:
            removed += self.remove(next(filter(_is_unused, self.open.values())))
        return removed

    def remove_idle(self) -> list[OpenStore]:
        """Removes stores that are idle for too long. Returns them, to be closed."""
        now = time.monotonic()
        idle = [tenant for tenant in self.open.values() if tenant.opened is not None and tenant.opened.is_idle(now)]
        return [opened for tenant in idle for opened in self.remove(tenant)]

    def remove(self, tenant: Tenant) -> list[OpenStore]:
        """Removes the store of a tenant. Returns it, if there is one."""
        opened, tenant.opened = tenant.opened, None
        self.open.pop(tenant.key, None)
        self.staying.pop(tenant.key, None)
        self.wake_first()
        return [] if opened is None else [opened]

    def end(self, opened: OpenStore, *, is_visit: bool) -> None:
        """Ends a call."""
        opened.calls -= 1
        opened.visits -= is_visit
        opened.idle_since = time.monotonic()
        self.wake_first()

    def wake_first(self) -> None:
        """Wakes the call that can begin now."""
        first = self._first()
        if first is not None:
            first.waiter.wake()


def _is_unused(tenant: Tenant) -> bool:
    return tenant.opened is not None and not tenant.opened.calls


def _is_visited(tenant: Tenant) -> bool:
    return tenant.opened is not None and tenant.opened.visits > 0
