"""Open stores: how many there may be on a server, and when they are closed.

Stores on one host and port share a limit. A store that nothing uses is closed after some seconds (`OpenStore.is_idle`),
and earlier if another store of the same server needs its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._many.tenant import OpenStore, Tenant
from postroom._room_store import WorkerStore
from postroom.errors import RoomClosed, StoreBusy, StoreNotFound

_log = logging.getLogger("postroom")

WAIT_SECONDS = 10.0
"""How long a call waits for a place on the server."""
TICK_SECONDS = 0.5
"""The pause between two searches for idle stores."""
RETRY_SECONDS = (0.01, 0.5)
"""The pause between two attempts to get a place: the first, and the longest."""
CLOSE_SECONDS = 10.0
"""How long a store may take to close. Its connections are left to the driver then."""


class OpenStoreVerbs:
    """The open stores of a room."""

    _pause: Callable[[float], object]

    def _close_store(self, store: WorkerStore) -> object:
        raise NotImplementedError

    def _finish_closing(self) -> object:
        """Waits for stores that are being closed."""
        raise NotImplementedError

    def __init__(self, per_server: int) -> None:
        """`per_server`: how many stores may be open on one server."""
        self.per_server = per_server
        self._lock = threading.Lock()  # never held during I/O: sync rooms are used by several threads
        self._open: dict[str, dict[str, Tenant]] = {}
        """By server and identifier. Those that were used least recently come first."""
        self._detached: set[OpenStore] = set()
        self._is_closed = False

    @verb
    def enter(self, tenant: Tenant) -> Program[OpenStore]:
        """Begins a call: opens the store of a tenant, which stays open until `leave`.

        Raises StoreNotFound if the tenant was removed, and StoreBusy if too many stores of its server are in use.
        """
        give_up = time.monotonic() + WAIT_SECONDS
        pause, longest = RETRY_SECONDS
        while True:
            with self._lock:
                opened, to_close = self._take(tenant)
            try:
                for each in to_close:
                    yield from self._close(each)
            except BaseException:  # it was cancelled
                if opened is not None:
                    yield from self._leave(opened)
                raise
            if opened is not None:
                return opened
            if time.monotonic() > give_up:
                raise StoreBusy(
                    f"store {tenant.key!r} cannot be opened: {self.per_server} stores of its server are open and in "
                    "use. Raise open_stores, or let fewer calls run at the same time"
                )
            yield call(self._pause, pause)
            pause = min(pause * 2, longest)

    @verb
    def leave(self, opened: OpenStore) -> Program[None]:
        """Ends a call."""
        yield from self._leave(opened)

    def _leave(self, opened: OpenStore) -> Program[None]:
        with self._lock:
            opened.calls -= 1
            opened.idle_since = time.monotonic()
            is_last = opened.is_detached and not opened.calls
        if is_last:
            yield from self._close_detached(opened)

    def _take(self, tenant: Tenant) -> tuple[OpenStore | None, list[WorkerStore]]:
        """Begins a call, if the store is open or can be opened. Also returns stores to close."""
        if self._is_closed:
            raise RoomClosed
        if tenant.is_removed:
            raise StoreNotFound(f"store {tenant.key!r} was removed from this room")
        opened = tenant.opened
        of_server = self._open.setdefault(tenant.server, {})
        to_close: list[WorkerStore] = []
        if opened is None:
            to_close = self._make_place(of_server)
            if len(of_server) >= self.per_server:
                return None, to_close
            opened = tenant.opened = OpenStore(tenant.make(), tenant.server)
            self._watch()
        of_server[tenant.key] = of_server.pop(tenant.key, tenant)
        opened.calls += 1
        return opened, to_close

    def _watch(self) -> None:
        """Called after a store was opened."""

    def _make_place(self, of_server: dict[str, Tenant]) -> list[WorkerStore]:
        """Removes stores that are idle for too long, and one more if the server is full. Returns them, to be closed."""
        now = time.monotonic()
        removed: list[WorkerStore] = []
        for tenant in list(of_server.values()):
            opened = tenant.opened
            if opened is None or opened.calls or opened.stays_open:
                continue
            if opened.is_idle(now) or len(of_server) >= self.per_server:
                removed += self._remove(tenant)
        return removed

    def _remove(self, tenant: Tenant) -> list[WorkerStore]:
        """Removes the store object of a tenant. Returns it, if there is one."""
        opened, tenant.opened = tenant.opened, None
        if opened is None:
            return []
        self._open[opened.server].pop(tenant.key, None)
        return [opened.store]

    def _close(self, store: WorkerStore) -> Program[None]:
        try:
            yield call(self._close_store, store)
        except Exception as error:  # noqa: BLE001 - its database may be gone
            _log.info("store=%s did not close cleanly: %s", store.name, store.errors.of(error))

    @verb
    def close_idle(self, tenant: Tenant) -> Program[None]:
        """Closes the store of a tenant, unless a call uses it."""
        with self._lock:
            opened = tenant.opened
            is_used = opened is None or opened.calls or opened.stays_open
            stores = [] if is_used else self._remove(tenant)
        for store in stores:
            yield from self._close(store)

    @verb
    def detach(self, tenants: Iterable[Tenant]) -> Program[None]:
        """Closes the stores of tenants, each when the last call that uses it has ended. Later calls open new ones."""
        with self._lock:
            detached = [tenant.opened for tenant in tenants if tenant.opened is not None]
            for tenant in tenants:
                self._remove(tenant)
            for opened in detached:
                opened.is_detached = True
            self._detached.update(detached)  # so that `close_all` closes them, if this is cancelled
            unused = [opened for opened in detached if not opened.calls]
        for opened in unused:
            yield from self._close_detached(opened)

    def _close_detached(self, opened: OpenStore) -> Program[None]:
        yield from self._close(opened.store)
        self._detached.discard(opened)

    @verb
    def close_all(self) -> Program[None]:
        """Closes all stores. No store can be opened any more."""
        with self._lock:
            self._is_closed = True
            tenants = [tenant for of_server in self._open.values() for tenant in of_server.values()]
            stores = [store for tenant in tenants for store in self._remove(tenant)]
            stores += [opened.store for opened in self._detached]
            self._detached.clear()
        for store in stores:
            yield from self._close(store)
        yield call(self._finish_closing)

    def count(self) -> dict[str, int]:
        """Returns how many stores are open, by server."""
        with self._lock:
            return {server: len(of_server) for server, of_server in self._open.items() if of_server}

    def _closable(self) -> list[Tenant]:
        """Returns the tenants whose stores are closed when nothing uses them."""
        with self._lock:
            tenants = [tenant for of_server in self._open.values() for tenant in of_server.values()]
            return [tenant for tenant in tenants if tenant.opened is not None and not tenant.opened.stays_open]


class SyncOpenStores(OpenStoreVerbs, Sync):
    """For sync rooms. A store that is idle for too long is closed when another one is opened."""

    _pause = staticmethod(time.sleep)

    def _close_store(self, store: WorkerStore) -> object:
        return store.close()

    def _finish_closing(self) -> None:
        """Does nothing: `_close_store` returns when the store is closed."""


class AsyncOpenStores(OpenStoreVerbs, Async):
    """For async rooms. A timer in each event loop closes the stores that are idle for too long."""

    _pause = staticmethod(asyncio.sleep)

    def __init__(self, per_server: int) -> None:
        super().__init__(per_server)
        self._timers = PerLoop(_Timer)
        self._closing: PerLoop[set[asyncio.Task[None]]] = PerLoop(set)

    async def _close_store(self, store: WorkerStore) -> None:
        """Closes a store in a task, which goes on if the caller is cancelled."""
        closing = self._closing.get()
        task = asyncio.create_task(_close_in_time(store))
        closing.add(task)
        task.add_done_callback(closing.discard)
        await asyncio.shield(task)

    async def _finish_closing(self) -> None:
        if closing := self._closing.get():
            await asyncio.wait(closing)

    @asynccontextmanager
    async def using(self, tenant: Tenant) -> AsyncIterator[WorkerStore]:
        """Keeps the store of a tenant open."""
        opened = await self.enter(tenant)
        try:
            yield opened.store
        finally:
            await self.leave(opened)

    def _watch(self) -> None:
        self._timers.get().start(self._close_idle_for_too_long)

    async def _close_idle_for_too_long(self) -> bool:
        """Returns False if no store is left to close."""
        now = time.monotonic()
        for tenant in self._closable():
            if tenant.opened is not None and tenant.opened.is_idle(now):
                await self.close_idle(tenant)
        return bool(self._closable())


async def _close_in_time(store: WorkerStore) -> None:
    async with asyncio.timeout(CLOSE_SECONDS):
        await store.close()


OpenStores: TypeAlias = AsyncOpenStores | SyncOpenStores


class _Timer:
    """Calls a function again and again, until it returns False."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, function: Callable[[], Awaitable[bool]]) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick, function)

    def _tick(self, function: Callable[[], Awaitable[bool]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._call(function))

    async def _call(self, function: Callable[[], Awaitable[bool]]) -> None:
        goes_on = await function()
        self._handle = None
        if goes_on:
            self.start(function)
