"""A store on a SQL database: verbs that hand programs to a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.coalesced import LOCK_PATIENCE, Coalescer
from postroom._stores.sql.drivers.base import Driver
from postroom._stores.sql.keys import KeyPrograms
from postroom._stores.sql.orders import OrderPrograms
from postroom._stores.sql.schema import SchemaPrograms
from postroom.spi import (
    Ask,
    Box,
    Claim,
    Counts,
    Draft,
    Features,
    Filter,
    Key,
    Mark,
    Purge,
    Reaped,
    Receipt,
    Settlement,
    Sighting,
    StoredMessage,
)

R = TypeVar("R")


class SqlVerbs:
    """The verbs of both colours."""

    _hears = False
    """Whether this colour has workers, which need to hear of work."""

    def __init__(self, driver: Driver, *, deploy_schema: bool = False, durable: bool = True) -> None:
        self.name = driver.name
        self.addresses = driver.addresses
        """Of its database, without credentials. Stores that have one in common are on the same database. Empty if the
        database is not known."""
        engine = driver.engine
        self.tx_classes: Sequence[str] = getattr(driver, "tx_classes", ())
        """What handlers get as `tx`, as package and class; the first is what it is."""
        self.features = Features(
            durable=durable,
            transactional=durable,
            concurrent=engine.concurrent,
            notify=self._hears and engine.notifies,
        )
        self._driver = driver
        self._deploy_schema = deploy_schema
        self._schema_is_fine = False
        self._schema = SchemaPrograms(driver.engine)
        self._queue = driver.engine.queue
        self._keys = KeyPrograms(self._queue)
        self._orders = OrderPrograms(self._queue)

    def _ready(self, tx: Any) -> Program[None]:
        """Before the first verb: the schema is there, or is made, or the caller is told."""
        if not self._schema_is_fine:
            if self._deploy_schema and tx is None:  # the caller's transaction may hold the lock that this needs
                yield call(self._driver.transact, self._schema.migrate)
            yield call(self._driver.transact, self._schema.check, tx=tx, write=False)
            self._schema_is_fine = True

    def _transact(
        self, program: Callable[..., Program[R]], *args: Any, tx: Any = None, patience: float | None = None
    ) -> Program[R]:
        self._driver.check_not_inside(tx)
        yield from self._ready(tx)
        return (yield call(self._driver.transact, partial(program, *args), tx=tx, patience=patience))

    def _read(self, program: Callable[..., Program[R]], *args: Any) -> Program[R]:
        yield from self._ready(None)
        return (yield call(self._driver.transact, partial(program, *args), write=False))

    @verb
    def _put(
        self, box: Box, drafts: Sequence[Draft], *, tx: Any = None, patience: float | None = None
    ) -> Program[list[Receipt]]:
        put = partial(self._queue.put, joined=tx is not None)
        return (yield from self._transact(put, box, drafts, tx=tx, patience=patience))

    @verb
    def claim(self, box: Box, ask: Ask, *, tx: Any = None) -> Program[list[StoredMessage]]:
        return (yield from self._transact(self._queue.claim, box, ask, tx=tx))

    @verb
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Any = None) -> Program[list[bool]]:
        return (yield from self._transact(self._queue.settle, box, settlements, tx=tx))

    @verb
    def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        return (yield from self._transact(self._queue.turn, box, settlements, ask))

    def transaction(self) -> Any:
        """A transaction of the store's own kind, to be passed as `tx`."""
        return self._driver.transaction()

    @verb
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        renewed = yield from self._transact(self._queue.renew, box, claims, lease)
        locked = [index for index, kept in enumerate(renewed) if kept is None]
        if locked:
            waited = yield from self._renew_locked(box, [claims[index] for index in locked], lease)
            for index, kept in zip(locked, waited, strict=True):
                renewed[index] = kept
        return list(map(bool, renewed))

    def _renew_locked(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool | None]]:
        """What another transaction has locked, once the others are renewed and committed: waits for it, in part of the
        lease. A row that is still locked then is not renewed."""
        waiting = partial(self._queue.renew, waits=True)
        patience = lease.total_seconds() / 4
        try:
            return (yield from self._transact(waiting, box, claims, lease, patience=patience))
        except Exception as error:
            if not self._driver.is_locked(error):
                raise
        return (yield from self._transact(self._queue.renew, box, claims, lease))

    @verb
    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        return (yield from self._transact(self._queue.reap, box, limit))

    @verb
    def replay(self, box: Box, which: Filter, *, tx: Any = None) -> Program[list[Key]]:
        return (yield from self._transact(self._queue.replay, box, which, tx=tx))

    @verb
    def purge(self, box: Box, purge: Purge) -> Program[int]:
        return (yield from self._transact(self._queue.purge, box, purge))

    @verb
    def find(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        return (yield from self._read(self._queue.find, box, which))

    @verb
    def counts(self, box: Box) -> Program[Counts]:
        return (yield from self._read(self._queue.counts, box))

    @verb
    def boxes(self) -> Program[list[str]]:
        return (yield from self._read(self._queue.boxes))

    @verb
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Sighting]]:
        return (yield from self._transact(self._keys.record, box, drafts, tx=tx))

    @verb
    def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Any = None
    ) -> Program[list[bool]]:
        return (yield from self._transact(self._keys.mark, box, keys, mark, error, tx=tx))

    @verb
    def cancel(self, box: Box, which: Filter, *, tx: Any = None) -> Program[list[Key]]:
        return (yield from self._transact(self._keys.cancel, box, which, tx=tx))

    @verb
    def record_order(self, box: Box, *, change: bool = False, tx: Any = None) -> Program[bool | None]:
        if tx is not None:
            joining = partial(self._orders.in_callers_transaction, change=change)
            return (yield from self._transact(joining, box, tx=tx))
        recorded = yield from self._read(self._orders.recorded, box)
        if recorded is None or (change and recorded is not box.order.fifo):
            recorded = yield from self._transact(partial(self._orders.record, change=change), box)
        return recorded

    @verb
    def migrate(self) -> Program[list[int]]:
        return (yield call(self._driver.transact, self._schema.migrate))

    @verb
    def schema_version(self) -> Program[int]:
        return (yield call(self._driver.transact, self._schema.version, write=False))

    def is_transient(self, error: BaseException) -> bool:
        return self._driver.is_transient(error)

    def schema_script(self) -> str:
        return self._schema.script()

    @verb
    def close(self) -> Program[None]:
        yield call(self._driver.close)


class SqlStore(SqlVerbs, Async):
    """For async code, where many tasks may put at the same time."""

    _hears = True

    def __init__(self, driver: Driver, *, deploy_schema: bool = False, durable: bool = True) -> None:
        super().__init__(driver, deploy_schema=deploy_schema, durable=durable)
        hurried = partial(self._put, patience=LOCK_PATIENCE) if self.features.concurrent else None
        self._coalescers = PerLoop(
            lambda: Coalescer(self._put, driver.is_transient, hurried=hurried, is_locked=driver.is_locked)
        )

    @verb
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Receipt]]:
        self._driver.check_not_inside(tx)
        step = call(self._coalescers.get().put, box, drafts) if tx is None else call(self._put, box, drafts, tx=tx)
        return (yield step)

    async def wait(self) -> frozenset[str]:
        """Where `features.notify` is so."""
        heard: frozenset[str] = await self._driver.wait()
        return heard


class SyncSqlStore(SqlVerbs, Sync):
    """For sync code."""

    put = SqlVerbs._put  # noqa: SLF001 - the same, under its public name
