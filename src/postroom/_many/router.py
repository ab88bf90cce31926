"""The router: the boxes of one store in a room with many stores."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from postroom._boxes import check
from postroom._boxes.guard.guard import Guard, SyncGuard
from postroom._boxes.guard.options import check_features
from postroom._boxes.inbox import SyncInbox, TenantInbox
from postroom._boxes.outbox import SyncOutbox, TenantOutbox
from postroom._kernel.policy import Box
from postroom._kernel.program import sync_runner
from postroom._kernel.states import BoxKind
from postroom._many.config import StoreKey, StoreResult
from postroom._many.each import call_each
from postroom._many.routed import RoutedStore, RoutedVerbs, SyncRoutedStore
from postroom._many.servers import AsyncOpenStores
from postroom._many.tenant import Tenant
from postroom._many.tenants import Tenants
from postroom._room_store import WorkerStore

StoreT = TypeVar("StoreT", bound=RoutedVerbs)
InboxT = TypeVar("InboxT")
OutboxT = TypeVar("OutboxT")
GuardT = TypeVar("GuardT")
Made = TypeVar("Made")
R = TypeVar("R")


class Router(Generic[InboxT, OutboxT, GuardT, StoreT]):
    """Finds the boxes of a store by its identifier. Made by a room with many stores: `room.router`."""

    _inbox: type[InboxT]
    _outbox: type[OutboxT]
    _guard: Callable[..., GuardT]
    _store: type[StoreT]

    def __init__(self, tenants: Tenants, find_box: Callable[[BoxKind, str], Any]) -> None:
        """`find_box`: returns an inbox, an outbox or a guard of the room."""
        self._tenants = tenants
        self._registry = tenants.registry
        self._find_box = find_box
        self._made: dict[str, dict[str, object]] = {}
        """What was made for each store, by its name."""
        self._registry.listeners.append(lambda change: self._forget(change.removed))

    def inbox(self, key: StoreKey, name: str = "inbox") -> InboxT:
        """Returns an inbox of one store: the same object at each call.

        Args:
            key: the identifier of the store, a str or a UUID.
            name: the name of the inbox. Its options are those of `room.inbox(name)`.

        Returns:
            The inbox, with all verbs except those of handlers and workers.

        Raises:
            StoreNotFound: the room has no such store. It is a LookupError.
            ArgumentTypeError, ArgumentValueError: a key that cannot be one.
        """
        return self._box(key, "inbox", name, self._inbox)

    def outbox(self, key: StoreKey, name: str = "outbox") -> OutboxT:
        """Returns an outbox of one store: the same object at each call.

        Args:
            key: the identifier of the store, a str or a UUID.
            name: the name of the outbox. Its options are those of `room.outbox(name)`.

        Returns:
            The outbox, with all verbs except those of handlers and workers.

        Raises:
            StoreNotFound: the room has no such store. It is a LookupError.
            ArgumentTypeError, ArgumentValueError: a key that cannot be one.
        """
        return self._box(key, "outbox", name, self._outbox)

    def guard(self, key: StoreKey, name: str) -> GuardT:
        """Returns a guard of one store: the same object at each call.

        Args:
            key: the identifier of the store, a str or a UUID.
            name: the name of the guard. Its options are those of `room.guard(name)`.

        Returns:
            The guard. Functions that it decorates run once for each key in this store.

        Raises:
            StoreNotFound: the room has no such store. It is a LookupError.
            ArgumentTypeError, ArgumentValueError: a key that cannot be one.
            FeatureMissing: the store cannot do what the guard needs.
        """
        tenant, guard = self._get(key), self._find_box("guard", name)
        box, policy = guard.box, guard.policy
        check_features(box, policy, tenant.facts.features)
        return self._once(tenant, box.key, lambda: self._guard(box, policy, self.store(key)))

    def store(self, key: StoreKey) -> StoreT:
        """Returns one store: with the verbs of `postroom.spi.Store`, and a `transaction()`.

        Args:
            key: the identifier of the store, a str or a UUID.

        Returns:
            The store: the same object at each call. It connects when a verb is called.

        Raises:
            StoreNotFound: the room has no such store. It is a LookupError.
        """
        tenant = self._get(key)
        return self._once(tenant, "", lambda: self._store(tenant, self._tenants))

    @property
    def keys(self) -> list[str]:
        """The identifiers of all stores, in order."""
        self._refresh()
        return [tenant.key for tenant in self._registry]

    @property
    def left_out(self) -> dict[str, str]:
        """Why stores of the last discovery are left out, by identifier."""
        discovery = self._tenants.discovery
        return {} if discovery is None else dict(discovery.left_out)

    @property
    def open_stores(self) -> dict[str, int]:
        """How many stores are open now, by server."""
        return self._tenants.stores.count()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | UUID) and str(key) in self._registry

    def __len__(self) -> int:
        return len(self._registry)

    def _refresh(self) -> None:
        """Reads the list of stores if it is old. An async room does so while it runs."""

    def _get(self, key: StoreKey) -> Tenant:
        self._refresh()
        return self._registry.get(key)

    def _box(self, key: StoreKey, kind: BoxKind, name: str, made_class: Callable[..., Made]) -> Made:
        tenant = self._get(key)
        box: Box = self._find_box(kind, name).box
        return self._once(tenant, box.key, lambda: made_class(box, self.store(key)))

    def _once(self, tenant: Tenant, name: str, make: Callable[[], Made]) -> Made:
        """Returns what was made for this tenant under this name, or makes it."""
        if tenant.is_removed:
            return make()  # it is not kept: a new tenant may get this identifier
        made = self._made.setdefault(tenant.key, {})
        if name not in made:
            made[name] = make()
        found: Made = made[name]  # type: ignore[assignment]
        return found

    def _forget(self, tenants: list[Tenant]) -> None:
        for tenant in tenants:
            self._made.pop(tenant.key, None)


class AsyncRouter(Router[TenantInbox, TenantOutbox, Guard, RoutedStore]):
    """For async rooms."""

    _inbox, _outbox, _guard, _store = TenantInbox, TenantOutbox, Guard, RoutedStore

    async def each(
        self,
        work: Callable[[WorkerStore], Awaitable[R]],
        *,
        keys: Iterable[StoreKey] | None = None,
        parallel: int = 4,
        progress: Callable[[StoreResult[R]], object] | None = None,
    ) -> list[StoreResult[R]]:
        """Calls an async function for each store. An error of one store does not end the others.

        Args:
            work: called with the open store; its `name` is the identifier, for `router.inbox(store.name)`.
            keys: only these stores. Default: all.
            parallel: how many stores of one server at the same time. Default: 4; at most the room's `open_stores`.
            progress: called with each result. Default: none.

        Returns:
            A `StoreResult` for each store, in the order of the stores or of `keys`.

        Raises:
            StoreNotFound: the room has no store of one of the `keys`. No store is called then.
        """
        chosen = list(self._registry) if keys is None else [self._get(key) for key in keys]
        stores = cast("AsyncOpenStores", self._tenants.stores)
        return await call_each(chosen, stores, work, check.count("parallel", parallel), progress)


class SyncRouter(Router[SyncInbox, SyncOutbox, SyncGuard, SyncRoutedStore]):
    """For sync rooms."""

    _inbox, _outbox, _guard, _store = SyncInbox, SyncOutbox, SyncGuard, SyncRoutedStore

    def __init__(self, tenants: Tenants, find_box: Callable[[BoxKind, str], Any]) -> None:
        super().__init__(tenants, find_box)
        self._refreshing = threading.RLock()

    def _refresh(self) -> None:
        """Lets one thread read the list. The others use the old one meanwhile, and wait only for the first."""
        discovery = self._tenants.discovery
        if discovery is None or discovery.pause or not self._refreshing.acquire(blocking=not discovery.has_list):
            return
        try:
            refresh_if_old(self._tenants)
        finally:
            self._refreshing.release()


refresh_if_old = sync_runner(lambda tenants: tenants.refresh(if_old=True))
