"""The store of one tenant, as boxes see it; and the store of a room whose calls name no tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from postroom._connect import transaction_classes
from postroom._kernel.observer import Event
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.texts import ErrorTexts
from postroom._many.servers import AsyncOpenStores, SyncOpenStores
from postroom._many.tenant import Tenant
from postroom._many.tenants import Tenants
from postroom._room_store import ROOM_VERBS
from postroom.errors import SchemaMissing, SchemaOutdated, StoreKeyMissing
from postroom.spi import Features, Tx, Verb, Waker


class RoutedVerbs:
    """A store that is opened for each call, and may be closed after it."""

    def __init__(self, tenant: Tenant, tenants: Tenants) -> None:
        self._tenant = tenant
        self._stores = tenants.stores
        self._transactions = tenants.transactions
        self.name = tenant.key
        self.errors = tenants.errors

    @property
    def features(self) -> Features:
        return self._tenant.facts.features

    @property
    def addresses(self) -> frozenset[str]:
        return self._tenant.facts.addresses

    @property
    def tx_classes(self) -> Sequence[str]:
        return self._tenant.facts.tx_classes

    def is_transient(self, error: BaseException) -> bool:
        return bool(self._any_store.is_transient(error))

    def is_observed(self, verb: str) -> bool:
        return bool(self._any_store.is_observed(verb))

    def emit(self, event: Event) -> None:
        self._any_store.emit(event)

    def schema_script(self) -> str:
        """Returns the tables as SQL text."""
        script: str = self._any_store.schema_script()
        return script

    @property
    def _any_store(self) -> Any:
        """The open store object; or a new one, without connections."""
        opened = self._tenant.opened
        return self._tenant.make() if opened is None else opened.store

    @verb
    def close(self) -> Program[None]:
        """Closes its connections. The next call opens them again."""
        yield call(self._stores.close_idle, self._tenant)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _routed(declared: Verb) -> Callable[..., Program[object]]:
    """Returns a method that calls the verb of this name on the open store."""

    def routed(self: RoutedVerbs, *args: object, **kwargs: object) -> Program[object]:
        stores, tx = self._stores, kwargs.get("tx")
        if tx is not None:
            self._transactions.check(self._tenant, tx)
        opened = yield call(stores.enter, self._tenant)
        try:
            return (yield call(getattr(opened.store, declared.name), *args, **kwargs))
        except (SchemaMissing, SchemaOutdated) as error:
            what = "has no tables" if isinstance(error, SchemaMissing) else "has tables of an earlier version"
            raise type(error)(
                f"store {self.name!r} {what}: call migrate_stores() on the room, run `postroom migrate --stores FILE`, "
                "or set deploy_schema=True"
            ) from error
        finally:
            yield call(stores.leave, opened)

    routed.__name__ = declared.name
    return routed


for _declared in ROOM_VERBS.values():
    if _declared.is_async and _declared.protocol is not Waker and not hasattr(RoutedVerbs, _declared.name):
        setattr(RoutedVerbs, _declared.name, verb(_routed(_declared)))


class RoutedStore(RoutedVerbs, Async):
    """For async code."""

    _stores: AsyncOpenStores

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Type checkers do not know the derived verbs."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """Opens a transaction, which can be passed as `tx`."""
        async with self._stores.using(self._tenant) as store, store.transaction() as tx:
            yield tx


class SyncRoutedStore(RoutedVerbs, Sync):
    """For sync code."""

    _stores: SyncOpenStores

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Type checkers do not know the derived verbs."""

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """Opens a transaction, which can be passed as `tx`."""
        opened = self._stores.enter(self._tenant)
        store: Any = opened.store
        try:
            with store.transaction() as tx:
                yield tx
        finally:
            self._stores.leave(opened)


MANY: Final = "many"
"""The name of all stores together, in log records."""
ANY_FEATURES = Features(durable=True, transactional=True, joins=True, guard=True)
"""What the boxes of a room with many stores may need. Each store is checked when it is first looked at."""


class UnroutedStore:
    """The store of boxes that name no tenant: they only have the handlers. Each of its verbs raises."""

    name = MANY
    features = ANY_FEATURES
    addresses: frozenset[str] = frozenset()

    def __init__(self, errors: ErrorTexts) -> None:
        self.errors = errors

    @property
    def tx_classes(self) -> Sequence[str]:
        """Those of all engines: a store that is discovered later may have any of them. Imports the engines' modules."""
        return transaction_classes()

    def __getattr__(self, name: str) -> NoReturn:
        if name in ROOM_VERBS:
            raise StoreKeyMissing(
                "this room has many stores, and this call names none: use room.router.inbox(key), "
                "room.router.outbox(key) or room.router.guard(key, name), where key is the identifier of the store"
            )
        raise AttributeError(name)
