"""A store on a SQL database: its verbs run programs of the engine's queue in transactions of a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.verified import Verified
from postroom._stores.coalesced import Sharing
from postroom._stores.sql.driver import AsyncDriver, Driver
from postroom._stores.sql.schema import SchemaPrograms
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import (
    VERBS,
    Attendance,
    Box,
    BoxLister,
    Claim,
    Draft,
    Exchanger,
    Features,
    GuardStore,
    JoinStore,
    KeyStore,
    QueueStore,
    Receipt,
    Tx,
    Verb,
)

R = TypeVar("R")
Renewal = SqlProgram[list[bool | None]]
"""Returns True for each renewed lease, False for each lost one, and None for each row that is locked."""


class SqlVerbs:
    """The verbs of both modes.

    The verbs of `QueueStore`, `KeyStore`, `JoinStore`, `GuardStore`, `Exchanger` and `BoxLister` that are not written
    here are derived: each runs the program of its name (`_derive_verbs`).
    """

    _listens = False
    """True if this mode has workers, which wait for notifications."""

    def __init__(
        self, driver: Driver, *, deploy_schema: bool = False, durable: bool = True, verified: Verified | None = None
    ) -> None:
        """`verified`: what was checked by earlier stores of this database."""
        self.name = driver.name
        self.addresses = driver.addresses
        """Texts that identify the database, without credentials. Empty if the database is not known."""
        engine = driver.engine
        self.tx_classes: Sequence[str] = getattr(driver, "tx_classes", ())
        """The classes of the transactions that handlers get, as package and class; the first is the actual one."""
        self.features = Features(
            durable=durable,
            transactional=durable,
            concurrent=engine.concurrent,
            notify=self._listens and engine.notifies,
            joins=True,
            guard=True,
        )
        self._driver = driver
        self._deploy_schema = deploy_schema
        self._verified = verified or Verified()
        self._schema = SchemaPrograms(engine)
        self._queue = engine.make_queue()

    def _check_schema(self, tx: Tx) -> Program[None]:
        """Before the first verb: creates the schema if this store deploys it, and raises SchemaError if it is wrong."""
        if self._deploy_schema and tx is None:  # the caller's transaction may hold a lock that `migrate` needs
            yield call(self._driver.transact, self._schema.migrate)
        yield call(self._driver.transact, self._schema.check, tx=tx, write=False)
        self._verified.schema = True

    def _write(
        self, program: Callable[[], SqlProgram[R]], tx: Tx = None, lock_timeout: float | None = None
    ) -> Program[R]:
        """Runs a program in the caller's transaction, or in its own one that waits for a lock up to `lock_timeout`."""
        self._driver.check_not_inside(tx)
        if not self._verified.schema:
            yield from self._check_schema(tx)
        result: R = yield call(self._driver.transact, program, tx=tx, lock_timeout=lock_timeout)
        return result

    def _read(self, program: Callable[[], SqlProgram[R]]) -> Program[R]:
        """Runs a program in a read-only transaction."""
        if not self._verified.schema:
            yield from self._check_schema(None)
        result: R = yield call(self._driver.transact, program, write=False)
        return result

    @verb
    def put(
        self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None, lock_timeout: float | None = None
    ) -> Program[list[Receipt]]:
        put: Callable[[], SqlProgram[list[Receipt]]] = partial(
            self._queue.put, box, drafts, in_caller_tx=tx is not None
        )
        return (yield from self._write(put, tx, lock_timeout=lock_timeout))

    @verb
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        renewed = yield from self._write(partial(self._queue.renew, box, claims, lease))
        locked = [index for index, kept in enumerate(renewed) if kept is None]
        if locked:
            waited = yield from self._renew_locked(box, [claims[index] for index in locked], lease)
            for index, kept in zip(locked, waited, strict=True):
                renewed[index] = kept
        return list(map(bool, renewed))

    def _renew_locked(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool | None]]:
        """Renews leases whose rows another transaction has locked, after the others are renewed and committed.

        Waits for the locks for a quarter of the lease. A row that is still locked then is not renewed.
        """
        waiting: Callable[[], Renewal] = partial(self._queue.renewals.renew_locked, box, claims, lease)
        skipping: Callable[[], Renewal] = partial(self._queue.renew, box, claims, lease)
        try:
            return (yield from self._write(waiting, lock_timeout=lease.total_seconds() / 4))
        except Exception as error:
            if not self._driver.is_locked(error):
                raise
        return (yield from self._write(skipping))

    @verb
    def record_order(self, box: Box, *, change: bool = False, tx: Tx = None) -> Program[bool | None]:
        if tx is not None:
            joining = partial(self._queue.orders.record_in_caller_tx, box, change=change)
            return (yield from self._write(joining, tx))
        recorded = yield from self._read(partial(self._queue.orders.recorded, box))
        if recorded is None or (change and recorded is not box.order.fifo):
            recorded = yield from self._write(partial(self._queue.orders.record, box, change=change))
        return recorded

    @verb
    def attend(self, boxes: Sequence[str], process: UUID, lease: timedelta) -> Program[Attendance]:
        found = yield from self._read(partial(self._queue.attending.read, boxes, process, lease))
        attendance = found.attendance
        if found.is_free:
            taken = yield from self._write(partial(self._queue.attending.take, process, lease))
            attendance = attendance._replace(free_in=taken)
        return attendance

    def transaction(self) -> Any:
        """Returns a context manager with an open transaction, which can be passed as `tx`."""
        return self._driver.transaction()

    @verb
    def migrate(self) -> Program[list[int]]:
        applied: list[int] = yield call(self._driver.transact, self._schema.migrate)
        return applied

    @verb
    def schema_version(self) -> Program[int]:
        version: int = yield call(self._driver.transact, self._schema.version, write=False)
        return version

    def schema_script(self) -> str:
        return self._schema.script()

    def is_transient(self, error: BaseException) -> bool:
        return self._driver.is_transient(error)

    @verb
    def close(self) -> Program[None]:
        yield call(self._driver.close)


def _derive_verbs(protocols: Sequence[type]) -> None:
    """Gives SqlVerbs the verbs of these protocols that it does not define."""
    for declared in VERBS.values():
        if declared.protocol in protocols and declared.name not in vars(SqlVerbs):
            setattr(SqlVerbs, declared.name, verb(_program_verb(declared)))


def _program_verb(declared: Verb) -> Callable[..., Program[object]]:
    """Returns a method that runs the program of this name, in a transaction as the verb needs it."""
    name = declared.name

    def read(self: SqlVerbs, *args: object, **kwargs: object) -> Program[object]:
        return self._read(partial(getattr(self._queue, name), *args, **kwargs))

    def write(
        self: SqlVerbs, *args: object, tx: Tx = None, lock_timeout: float | None = None, **kwargs: object
    ) -> Program[object]:
        return self._write(partial(getattr(self._queue, name), *args, **kwargs), tx, lock_timeout)

    method = read if declared.reads else write
    method.__name__ = name
    return method


_derive_verbs([QueueStore, KeyStore, JoinStore, GuardStore, Exchanger, BoxLister])


class SqlStore(SqlVerbs, Async):
    """For async code, where many tasks may put at the same time."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Type checkers do not know the derived verbs."""

    _listens = True
    _driver: AsyncDriver

    def __init__(
        self,
        driver: AsyncDriver,
        *,
        deploy_schema: bool = False,
        durable: bool = True,
        verified: Verified | None = None,
    ) -> None:
        super().__init__(driver, deploy_schema=deploy_schema, durable=durable, verified=verified)
        self.sharing = Sharing(
            is_shared_error=driver.is_transient,
            limits_locks=self.features.concurrent,  # without concurrent writers there are no row locks to wait for
            is_lock_timeout=driver.is_locked,
            check=partial(driver.check_not_inside, None),
        )

    async def wait(self) -> frozenset[str]:
        """As `Waker` says, with `features.notify`."""
        return await self._driver.wait()


class SyncSqlStore(SqlVerbs, Sync):
    """For sync code."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Type checkers do not know the derived verbs."""
