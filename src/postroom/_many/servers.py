"""Open stores: how many there may be on a server, and when they are closed.

Stores on one host and port share a limit (`places.Places`). Calls wait for a place in order. A store that nothing uses
is closed after some seconds (`OpenStore.is_idle`), and earlier if another store of the same server needs its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._many.places import AsyncWaiter, Places, StoreCall, SyncWaiter, Waiter
from postroom._many.tenant import OpenStore, Tenant
from postroom._room_store import WorkerStore
from postroom.errors import RoomClosed, StoreBusy, StoreNotFound

_log = logging.getLogger("postroom")

WAIT_SECONDS = 10.0
"""How long a call waits for a place on the server."""
TICK_SECONDS = 0.5
"""The pause between two searches for idle stores."""
CLOSE_SECONDS = 10.0
"""How long a store may take to close. Its connections are left to the driver then."""


class OpenStoreVerbs:
    """The open stores of a room."""

    _new_waiter: Callable[[], Waiter]

    def _close(self, stores: list[OpenStore]) -> object:
        """Closes stores, which are removed before. All are closed, even if the caller is cancelled."""
        raise NotImplementedError

    def _finish_closing(self) -> object:
        """Waits for stores that are being closed."""
        raise NotImplementedError

    def __init__(self, per_server: int) -> None:
        """`per_server`: how many stores may be open on one server."""
        self.per_server = per_server
        self._lock = threading.Lock()  # never held during I/O: rooms are used by several threads
        self._servers: dict[str, Places] = {}
        self._detached: set[OpenStore] = set()
        self._is_closed = False

    @verb
    def enter(self, tenant: Tenant, *, is_visit: bool = False) -> Program[OpenStore]:
        """Begins a call: opens the store of a tenant, which stays open until `leave`.

        Raises StoreNotFound if the tenant was removed, and StoreBusy if too many stores of its server are in use.
        """
        give_up = time.monotonic() + WAIT_SECONDS
        request = StoreCall(tenant, self._new_waiter(), is_visit=is_visit)
        with self._lock:
            places = self._places(tenant.server)
            places.waiting[request] = None
        try:
            while True:
                with self._lock:
                    begun = self._begin(places, request)
                if begun is not None:
                    break
                if not (yield call(request.waiter.wait, give_up - time.monotonic())):
                    raise StoreBusy(
                        f"store {tenant.key!r} cannot be opened: {self.per_server} stores of its server are open and "
                        "in use. Raise open_stores, or let fewer calls run at the same time"
                    )
        finally:
            with self._lock:
                places.waiting.pop(request)
                places.wake_first()
        opened, removed = begun
        if removed:
            try:
                yield call(self._close, removed)
            except BaseException:  # it was cancelled
                yield from self._leave(opened, is_visit=is_visit)
                raise
        return opened

    @verb
    def leave(self, opened: OpenStore, *, is_visit: bool = False) -> Program[None]:
        """Ends a call."""
        yield from self._leave(opened, is_visit=is_visit)

    def _leave(self, opened: OpenStore, *, is_visit: bool) -> Program[None]:
        with self._lock:
            self._places(opened.server).end(opened, is_visit=is_visit)
            unused = self._take_detached([opened])
        if unused:
            yield call(self._close, unused)

    def has_waiting(self, tenant: Tenant) -> bool:
        """Returns True if calls wait for a place on the server of a tenant."""
        return tenant.server in self._servers and bool(self._servers[tenant.server].waiting)

    def _places(self, server: str) -> Places:
        if server not in self._servers:
            self._servers[server] = Places(server, self.per_server)
        return self._servers[server]

    def _begin(self, places: Places, request: StoreCall) -> tuple[OpenStore, list[OpenStore]] | None:
        """Begins a call, if it is its turn. Also returns stores to close."""
        if self._is_closed:
            raise RoomClosed
        tenant = request.tenant
        if tenant.is_removed:
            if tenant.is_gone or tenant.opened is None:
                raise StoreNotFound(f"store {tenant.key!r} was removed from this room")
            tenant.opened.calls += 1  # for the handlers that run; it needs no place
            tenant.opened.visits += request.is_visit
            return tenant.opened, []
        request.waiter.clear()
        if not places.may_begin(request):
            return None
        begun = places.begin(request)
        self._begun(begun[0])
        return begun

    def _begun(self, opened: OpenStore) -> None:
        """Called when a call begins."""

    def _remove(self, tenants: Iterable[Tenant]) -> list[OpenStore]:
        """Removes the store objects of tenants. Returns them."""
        found = [(tenant, tenant.opened.server) for tenant in tenants if tenant.opened is not None]
        return [opened for tenant, server in found for opened in self._places(server).remove(tenant)]

    @verb
    def close_idle(self, tenant: Tenant) -> Program[None]:
        """Closes the store of a tenant, unless a call uses it."""
        with self._lock:
            opened = tenant.opened
            is_used = opened is None or opened.calls or tenant.stays_open
            removed = [] if is_used else self._remove([tenant])
        if removed:
            yield call(self._close, removed)

    @verb
    def detach(self, tenants: Sequence[Tenant]) -> Program[None]:
        """Closes the stores of tenants, each when the last call that uses it has ended. Later calls open new ones."""
        with self._lock:
            in_use = [(tenant, tenant.opened) for tenant in tenants if tenant.visits and tenant.is_removed]
            detached = self._remove(tenants)
            for tenant, opened in in_use:
                tenant.opened = opened  # for the handlers that run
            for opened in detached:
                opened.is_detached = True
            self._detached.update(detached)
            unused = self._take_detached(detached)
            self._wake_all()  # a tenant that is removed is not waited for
        if unused:
            yield call(self._close, unused)

    def _take_detached(self, stores: list[OpenStore]) -> list[OpenStore]:
        """Returns those of these stores that are detached and not used, to be closed."""
        unused = [opened for opened in stores if opened in self._detached and not opened.calls]
        self._detached.difference_update(unused)
        return unused

    @verb
    def close_all(self) -> Program[None]:
        """Closes all stores. No store can be opened any more."""
        with self._lock:
            self._is_closed = True
            removed = self._remove([tenant for places in self._servers.values() for tenant in places.tenants()])
            removed += self._detached
            self._detached.clear()
            self._wake_all()
        yield call(self._close, removed)
        yield call(self._finish_closing)

    def _wake_all(self) -> None:
        for places in self._servers.values():
            for request in places.waiting:
                request.waiter.wake()

    def count(self) -> dict[str, int]:
        """Returns how many stores are open, by server."""
        with self._lock:
            return {places.server: len(places) for places in self._servers.values() if len(places)}


class SyncOpenStores(OpenStoreVerbs, Sync):
    """For sync rooms. A store that is idle for too long is closed when another one is opened."""

    _new_waiter = SyncWaiter

    def _close(self, stores: list[OpenStore]) -> None:
        for opened in stores:
            try:
                opened.store.close()  # type: ignore[unused-coroutine]
            except Exception as error:  # noqa: BLE001 - its database may be gone
                _log_failed_close(opened.store, error)

    def _finish_closing(self) -> None:
        """Does nothing: `_close` returns when the stores are closed."""


class AsyncOpenStores(OpenStoreVerbs, Async):
    """For async rooms. A timer in each event loop closes the stores that are idle for too long."""

    _new_waiter = AsyncWaiter

    def __init__(self, per_server: int) -> None:
        super().__init__(per_server)
        self._timers = PerLoop(_Timer)
        self._closing: PerLoop[set[asyncio.Task[None]]] = PerLoop(set)

    async def _close(self, stores: list[OpenStore]) -> None:
        """Closes stores in tasks, in each event loop that has used them. The tasks go on if the caller is cancelled."""
        here = asyncio.get_running_loop()
        for opened in stores:
            for loop in opened.loops - {here}:
                with suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(self._start_closing, opened.store)
        tasks = [self._start_closing(opened.store) for opened in stores]
        if tasks:
            await asyncio.wait(tasks)

    def _start_closing(self, store: WorkerStore) -> asyncio.Task[None]:
        closing = self._closing.get()
        task = asyncio.get_running_loop().create_task(_close_in_time(store))
        closing.add(task)
        task.add_done_callback(closing.discard)
        return task

    async def _finish_closing(self) -> None:
        if closing := self._closing.get():
            await asyncio.wait(closing)

    @asynccontextmanager
    async def using(self, tenant: Tenant, *, is_visit: bool = False) -> AsyncIterator[WorkerStore]:
        """Keeps the store of a tenant open."""
        opened = await self.enter(tenant, is_visit=is_visit)
        try:
            yield opened.store
        finally:
            await self.leave(opened, is_visit=is_visit)

    def _begun(self, opened: OpenStore) -> None:
        here = asyncio.get_running_loop()
        if here not in opened.loops:
            opened.loops = {here, *(loop for loop in opened.loops if not loop.is_closed())}
        self._timers.get().start(self._close_idle_for_too_long)

    async def _close_idle_for_too_long(self) -> bool:
        """Returns False if no store is left to close."""
        with self._lock:
            removed = [opened for places in self._servers.values() for opened in places.remove_idle()]
            goes_on = any(places.open for places in self._servers.values())
        await self._close(removed)
        return goes_on


async def _close_in_time(store: WorkerStore) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await store.close()
    except Exception as error:  # noqa: BLE001 - its database may be gone
        _log_failed_close(store, error)


def _log_failed_close(store: WorkerStore, error: Exception) -> None:
    _log.info("store=%s did not close cleanly: %s", store.name, store.errors.of(error))


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
