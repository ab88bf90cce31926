"""PostgreSQL: programs in transactions of their own or of the caller, on whatever connections there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from postroom._kernel.clock import Clock
from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.sql.drivers.callers import Colour, open_connection
from postroom._stores.sql.drivers.failures import ABORTED, Failures, is_aborted, sqlstate
from postroom._stores.sql.drivers.listener import Listener
from postroom._stores.sql.drivers.pools import BEGIN, Lease, Pool
from postroom._stores.sql.engines.postgres.engine import PostgresEngine
from postroom._stores.sql.statements import Many, Script, Statement
from postroom.errors import CommitUnknown, RoomClosed, TransactionAborted, TransactionRefused, refuse

_PASSING = (
    "08",  # the connection is gone, or was never there
    "40001",  # serialization failure
    "40P01",  # deadlock
    "55P03",  # `_LOCKED`: a lock was not to be had in time
    "57P",  # the server is shutting down, or starting
    "53300",  # too many connections
    "53200",  # too many locks
    "25006",  # the server is a standby: after a failover, another host is the primary
)
_LOCKED = "55P03"
_BROKEN = ("08", "57P", "25006")
"""After these, a connection is of no use any more."""
FOR_HANDLERS = 2
"""So many connections of a pool of our own are kept for the verbs, when handlers have transactions open."""


def is_broken(error: BaseException) -> bool:
    """Whether the connection, not only the statement, is lost."""
    error = _driver_error(error)
    state = sqlstate(error)
    if state is not None:
        return state.startswith(_BROKEN)
    return isinstance(error, OSError | asyncio.CancelledError) or _is_named(error, _LOST)


def _driver_error(error: BaseException) -> BaseException:
    """SQLAlchemy's errors have the driver's inside."""
    inside = getattr(error, "orig", None)
    return inside if isinstance(inside, BaseException) else error


@contextmanager
def _lost_is_rolled_back() -> Iterator[None]:
    """Around a rollback: the server rolls back when a connection is lost. The error that led to the rollback counts."""
    try:
        yield
    except Exception as error:
        if not is_broken(error):
            raise


@contextmanager
def _lost_is_unknown() -> Iterator[None]:
    """Around a commit: if the connection is lost, the server may have committed."""
    try:
        yield
    except Exception as error:
        if not is_broken(error):
            raise
        raise CommitUnknown(
            f"the connection was lost while the transaction was committed ({type(_driver_error(error)).__name__}), so "
            "it is not known whether it is committed"
        ) from None


_LOST = {"ConnectionDoesNotExistError", "InterfaceError", "OperationalError", "InternalClientError", "PoolTimeout"}


def _is_named(error: BaseException, names: set[str]) -> bool:
    """Told by name: of two drivers, only one may be installed."""
    return any(base.__name__ in names for base in type(error).__mro__)


class PostgresVerbs:
    """What both colours share."""

    _colour: Colour

    def __init__(
        self,
        pool: Pool,
        engine: PostgresEngine,
        *,
        name: str,
        wires: Sequence[Any],
        clock: Clock | None = None,
        explicit: bool = False,
        handlers: int | None = None,
        database: str | None = None,
        addresses: frozenset[str] = frozenset(),
    ) -> None:
        """`wires`: for the connections that may be passed as `tx`. `explicit`: every statement stands in a transaction.
        `handlers`: how many transactions may be open for handlers at the same time. `database`: what it is called,
        where that is known. `addresses`: what `SqlVerbs.addresses` says."""
        self.engine = engine
        self.name = name
        self.addresses = addresses
        self._pool = pool
        self._wires = tuple(wires)
        self._clock = clock
        self._explicit = explicit
        self._handlers = handlers
        self._database = database
        self.tx_classes: Sequence[str] = getattr(pool, "tx_classes", ())
        self._closed = False
        self._failures: dict[int, Failures] = {}
        """Of the transactions that are open for handlers, by the identity of their connections."""

    @verb
    def transact(
        self,
        program: Callable[[], Program[Any]],
        *,
        tx: Any = None,
        write: bool = True,
        patience: float | None = None,
    ) -> Program[Any]:
        if self._closed:
            raise RoomClosed
        if tx is not None:
            connection, wire = yield from open_connection(
                tx, kind=self.engine.name, colour=self._colour, wires=self._wires
            )
            theirs = wire.database(connection)
            if None not in (theirs, self._database) and theirs != self._database:
                raise refuse(f"it is of the database {theirs!r}, and this room is on {self._database!r}")
            return (yield from self._in_callers_transaction(program(), wire, connection))
        lease = yield call(self._pool.acquire)
        broken = False
        try:
            return (yield from self._in_own_transaction(program(), lease, patience))
        except BaseException as error:
            broken = is_broken(error)
            raise
        finally:
            yield call(self._pool.release, lease, broken=broken)

    def _in_callers_transaction(self, program: Program[Any], wire: Any, connection: Any) -> Program[Any]:
        try:
            return (yield from self._run_steps(program, wire, connection))
        except Exception as error:
            if sqlstate(error) != ABORTED:
                raise
            failures = self._failures.get(id(connection))
            if failures is None:
                raise TransactionAborted from error
            raise TransactionAborted(failures.last, in_handler=True) from error

    def _in_own_transaction(self, program: Program[Any], lease: Lease, patience: float | None = None) -> Program[Any]:
        """A transaction begins with the first step that needs one; a limit for locks goes with it in one visit."""
        wire, connection = self._pool.wire, lease.connection
        explicit = self._explicit or patience is not None
        limit = "" if patience is None else f"; SET LOCAL lock_timeout = {max(round(patience * 1000), 1)}"
        begun = False

        def begin(step: Any) -> Program[None]:
            nonlocal begun
            if not begun and (explicit or not getattr(step, "alone", False)):
                yield call(wire.execute, connection, BEGIN + limit)
                begun = True

        try:
            result = yield from self._run_steps(program, wire, connection, begin)
            if begun:
                yield call(wire.execute, connection, "COMMIT")
        except BaseException as error:
            if begun and not is_broken(error):
                yield call(wire.execute, connection, "ROLLBACK")
            raise
        return result

    def _run_steps(
        self, program: Program[Any], wire: Any, connection: Any, before: Callable[[Any], Program[None]] | None = None
    ) -> Program[Any]:
        try:
            step = next(program)
            while True:
                if before is not None:
                    yield from before(step)
                try:
                    result = yield from self._perform(step, wire, connection)
                except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                    step = program.throw(error)
                else:
                    step = program.send(result)
        except StopIteration as stop:
            return stop.value

    def _perform(self, step: Statement | Many | Script, wire: Any, connection: Any) -> Program[Any]:
        if isinstance(step, Statement):
            text = self.engine.statements[step.name]
            return (yield call(wire.fetch, connection, text.numbered, self._bind(text.parameters, step.parameters)))
        if isinstance(step, Many):
            if not step.rows:
                return 0
            text = self.engine.statements[step.name]
            columns = dict(zip(step.columns, map(list, zip(*step.rows, strict=True)), strict=True))
            return len((yield call(wire.fetch, connection, text.numbered, self._bind(text.parameters, columns))))
        yield call(wire.execute, connection, step.text, lasting=True)
        return []

    def _bind(self, names: Sequence[str], given: Any) -> list[Any]:
        if self._clock is not None and "now" in names:
            given = {**given, "now": self._clock.now()}
        return [given[name] for name in names]

    def is_transient(self, error: BaseException) -> bool:
        error = _driver_error(error)
        state = sqlstate(error)
        if state is not None:
            return state.startswith(_PASSING)
        return isinstance(error, OSError | TimeoutError) or _is_named(error, _LOST)

    def is_locked(self, error: BaseException) -> bool:
        return sqlstate(error) == _LOCKED

    def check_not_inside(self, tx: Any) -> None:
        """Writers do not wait for each other here."""


class PostgresDriver(PostgresVerbs, Async):
    """For async code."""

    _colour = "async"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._room_for_handlers = PerLoop(lambda: asyncio.Semaphore(self._handlers or 1_000_000))
        self._listeners = PerLoop(lambda: Listener(self._pool, self.engine.channel))

    async def wait(self) -> frozenset[str]:
        """Wait for a hint that there may be work; answers the keys of boxes, or nothing for any."""
        if self._closed:
            raise RoomClosed
        return await self._listeners.get().wait()

    async def close(self) -> None:
        self._closed = True
        listener = self._listeners.pop()
        if listener is not None:
            await listener.close()
        await self._pool.close()

    @contextmanager
    def _failures_of(self, lease: Lease) -> Iterator[None]:
        """Note the errors of statements in a handler's transaction, for the case that it catches them."""
        failures = self._failures[id(lease.connection)] = Failures()
        try:
            with self._pool.watched(lease, failures.note):
                yield
        except TransactionRefused as error:
            if self._pool.wire.is_closed(lease.connection):
                raise ConnectionResetError("the connection of the transaction was lost") from None
            error.failed = failures.last
            raise
        except Exception as error:
            if is_aborted(error.__cause__):  # the handler went on after a statement that had failed
                raise TransactionAborted(failures.last, in_handler=True) from error.__cause__
            raise
        finally:
            del self._failures[id(lease.connection)]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self._closed:
            raise RoomClosed
        async with self._room_for_handlers.get():
            lease = await self._pool.acquire()
            broken = True
            try:
                await self._pool.begin(lease)
                try:
                    with self._failures_of(lease):
                        yield lease.handle
                except BaseException:
                    with _lost_is_rolled_back():
                        await self._pool.rollback(lease)
                        broken = False
                    raise
                with _lost_is_unknown():
                    await self._pool.commit(lease)
                broken = False
            finally:
                await asyncio.shield(self._pool.release(lease, broken=broken))


class SyncPostgresDriver(PostgresVerbs, Sync):
    """For sync code."""

    _colour = "sync"

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self._closed:
            raise RoomClosed
        lease = self._pool.acquire()
        broken = True
        try:
            self._pool.begin(lease)
            try:
                yield lease.handle
            except BaseException:
                with _lost_is_rolled_back():
                    self._pool.rollback(lease)
                    broken = False
                raise
            with _lost_is_unknown():
                self._pool.commit(lease)
            broken = False
        finally:
            self._pool.release(lease, broken=broken)
