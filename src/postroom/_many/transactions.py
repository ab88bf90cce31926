"""Transactions and stores: a verb of one store refuses a transaction that is of another store of the room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from postroom._connect import addresses_of_tx
from postroom._kernel.program import Mode
from postroom._many.registry import Registry
from postroom._many.tenant import Tenant
from postroom._room_store import handling
from postroom._stores.wrapper import AnyStore, StoreWrapper
from postroom.errors import TransactionRefused
from postroom.spi import Tx


class OpenTransactions:
    """The transactions that the stores of one room have open for callers and handlers."""

    def __init__(self) -> None:
        self._stores: dict[int, str] = {}
        """The identifiers of their stores, by the identity of what is passed as `tx`."""

    @contextmanager
    def noted(self, tx: Tx, key: str) -> Iterator[None]:
        """Notes the store of a transaction while it is open."""
        self._stores[id(tx)] = key
        try:
            yield
        finally:
            del self._stores[id(tx)]

    def store_of(self, tx: Tx) -> str | None:
        """Returns the store of a transaction, or of a SQLAlchemy session on it; None if a store did not open it."""
        return self._stores.get(id(tx)) or self._stores.get(id(getattr(tx, "bind", None)))


class TrackedStore(StoreWrapper):
    """Notes the transactions that it opens."""

    def __init__(self, inner: AnyStore, mode: Mode, transactions: OpenTransactions) -> None:
        super().__init__(inner)
        if hasattr(inner, "transaction"):
            self.transaction = (self._noting if mode == "async" else self._noting_sync)(inner.transaction, transactions)

    def _noting(self, begin: Callable[[], Any], transactions: OpenTransactions) -> Callable[[], Any]:
        @asynccontextmanager
        async def transaction() -> AsyncIterator[Tx]:
            async with begin() as tx:
                with transactions.noted(tx, self.name):
                    yield tx

        return transaction

    def _noting_sync(self, begin: Callable[[], Any], transactions: OpenTransactions) -> Callable[[], Any]:
        @contextmanager
        def transaction() -> Iterator[Tx]:
            with begin() as tx, transactions.noted(tx, self.name):
                yield tx

        return transaction


class TransactionCheck:
    """Refuses transactions of other stores, without I/O."""

    def __init__(self, transactions: OpenTransactions, registry: Registry) -> None:
        self._transactions = transactions
        self._registry = registry
        self._by_address: dict[str, str] | None = None
        """The identifiers of stores by the addresses of their databases. Made when it is needed."""
        registry.listeners.append(lambda _change: self._forget())

    def _forget(self) -> None:
        self._by_address = None

    def check(self, tenant: Tenant, tx: Tx) -> None:
        """Raises TransactionRefused if `tx` is of another store than this one."""
        owner = self._transactions.store_of(tx) or self._store_by_address(tenant, tx)
        if owner is None or owner == tenant.key:
            return
        refusal = TransactionRefused(
            f"tx is of store {owner!r}, this call is of store {tenant.key!r}: pass a transaction of "
            f"{tenant.key!r}, or leave out tx (inside a transactional handler: tx=SEPARATE), so that the write "
            "commits by itself"
        )
        handler = handling.entry()
        if handler is not None:
            handler.note(refusal)
        raise refusal

    def _store_by_address(self, tenant: Tenant, tx: Tx) -> str | None:
        """Returns the store of a caller's connection, if its address is the one of a store.

        An address that no store has may be another name of the same server, or the one of PgBouncer.
        """
        own = _known(tenant)
        found = addresses_of_tx(tenant.config.url, tx) if own else frozenset()
        if not found or not own.isdisjoint(found):
            return None
        if self._by_address is None:
            self._by_address = {address: each.key for each in self._registry for address in _known(each)}
        return next((self._by_address[address] for address in sorted(found) if address in self._by_address), None)


def _known(tenant: Tenant) -> frozenset[str]:
    """Returns the addresses that name a server."""
    return frozenset(address for address in tenant.facts.addresses if "://" in address)
