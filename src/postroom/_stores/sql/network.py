"""The driver for a database behind a network: connections from a pool, programs in transactions on them.

An engine adds its `ServerDialect`, the connections of its client libraries (`Adapter`) and its pools (`Pool`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from postroom._kernel.clock import Clock
from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Mode, Pending, Program, Sync, call, interpret, verb
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.error_codes import ErrorCodes, FailedStatements, client_error_name
from postroom._stores.sql.statements import Many, SqlProgram, Statement, Step
from postroom._stores.sql.transactions import CallerAdapter, CallerConnections, Connection
from postroom.errors import CommitUnknown, RoomClosed, TransactionAborted, TransactionRefused, refuse
from postroom.spi import Tx

R = TypeVar("R")
ClientPool: TypeAlias = Any
"""A pool of a client library, or a SQLAlchemy engine. Only its `Pool` knows more."""
RecordError = Callable[[BaseException | None], None]


@dataclass(frozen=True)
class ServerDialect:
    """What the driver has to know of one kind of server."""

    errors: ErrorCodes
    begin: str
    set_lock_timeout: Callable[[float], str]
    """Returns a statement that limits how many seconds the transaction waits for a row lock."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Error texts for connections of client libraries that are not supported, by class name."""

    def begin_with(self, lock_timeout: float | None) -> str:
        """Returns the text that begins a transaction, in one round trip."""
        return self.begin if lock_timeout is None else f"{self.begin}; {self.set_lock_timeout(lock_timeout)}"


class Adapter(CallerAdapter, Protocol):
    """How statements run on the connections of one client library. The methods of async adapters are coroutines."""

    def fetch(self, connection: Connection, text: str, parameters: Sequence[object], /) -> object:
        """Runs a statement and returns its rows."""

    def execute(self, connection: Connection, text: str, /, *, may_take_long: bool = False) -> object:
        """Runs statements without parameters or rows. `may_take_long`: without the usual time limit."""

    def database(self, connection: Connection, /) -> str | None:
        """Returns the name of the connection's database; None if the client library does not know it."""

    def is_closed(self, connection: Connection, /) -> bool:
        """Returns True if the connection was lost or closed."""


@dataclass
class Checkout:
    """A connection that is taken from a pool."""

    connection: Connection
    """The client library's."""
    handle: Tx
    """What a transactional handler gets as `tx`: the connection, or a SQLAlchemy connection on it."""
    pool: ClientPool = None
    """The client library's pool; None for a connection beside the pool, which is closed after use."""
    restore_autocommit_off: bool = False
    """Whether the user's pool had it without autocommit, and must get it back so."""
    transaction: Any = None
    """The client library's or SQLAlchemy's object, where it has one."""
    in_use: set[int] = field(default_factory=set)
    """The checkouts of the same pool, by identity, where they are counted."""


class Pool(Protocol):
    """A source of connections. The methods of async pools are coroutines."""

    @property
    def adapter(self) -> Adapter: ...
    def acquire(self) -> object: ...
    def release(self, checkout: Checkout, *, broken: bool = False) -> object: ...
    def begin(self, checkout: Checkout) -> object: ...
    def commit(self, checkout: Checkout) -> object: ...
    def rollback(self, checkout: Checkout) -> object: ...
    def close(self) -> object: ...


class SyncPool(Pool, Protocol):
    """A pool for sync code."""

    def acquire(self) -> Checkout: ...


class AsyncPool(Pool, Protocol):
    """A pool for async code, which has handlers."""

    @property
    def adapter(self) -> Any:
        """An engine may need more of it than `Adapter`, such as subscriptions."""

    def acquire(self) -> Pending[Checkout]: ...
    def release(self, checkout: Checkout, *, broken: bool = False) -> Pending[None]: ...
    def begin(self, checkout: Checkout) -> Pending[None]: ...
    def commit(self, checkout: Checkout) -> Pending[None]: ...
    def rollback(self, checkout: Checkout) -> Pending[None]: ...
    def close(self) -> Pending[None]: ...
    def recording(self, checkout: Checkout, record: RecordError) -> AbstractContextManager[None]:
        """Passes the errors of a handler's statements to `record`, as far as the client library reports them."""


class NetworkVerbs:
    """The verbs of both modes."""

    dialect: ClassVar[ServerDialect]
    _mode: Mode

    def __init__(
        self,
        pool: Pool,
        engine: Engine,
        *,
        name: str,
        adapters: Sequence[Adapter] = (),
        clock: Clock | None = None,
        always_begin: bool = False,
        max_handlers: int | None = None,
        database: str | None = None,
        addresses: frozenset[str] = frozenset(),
    ) -> None:
        """`adapters`: for connections that a caller passes as `tx`, of both modes. `always_begin`: a single statement
        needs a transaction too. `max_handlers`: how many handlers may have a transaction at the same time. `database`:
        its name, to refuse connections to another one. `addresses`: see `Driver`."""
        self.engine = engine
        self.name = name
        self.addresses = addresses
        self.tx_classes: Sequence[str] = getattr(pool, "tx_classes", ())
        self._pool = pool
        self._callers = CallerConnections(engine.name, self._mode, adapters, advice=self.dialect.advice)
        self._clock = clock
        self._always_begin = always_begin
        self._max_handlers = max_handlers
        self._database = database
        self._closed = False
        self._failed_statements: dict[int, FailedStatements] = {}
        """Of the transactions that are open for handlers, by the identity of their connections."""

    @verb
    def transact(
        self,
        program: Callable[[], SqlProgram[object]],
        *,
        tx: Tx = None,
        write: bool = True,
        lock_timeout: float | None = None,
    ) -> Program[object]:
        self._check_open()
        if tx is not None:
            connection, adapter = yield from self._callers.find(tx)
            self._check_database(adapter.database(connection))
            return (yield from self.in_caller_transaction(program(), adapter, connection))
        checkout: Checkout = yield call(self._pool.acquire)
        is_lost = False
        try:
            return (yield from self.in_own_transaction(program(), checkout.connection, lock_timeout))
        except BaseException as error:
            is_lost = self.dialect.errors.is_connection_lost(error)
            raise
        finally:
            yield call(self._pool.release, checkout, broken=is_lost)

    def _check_open(self) -> None:
        if self._closed:
            raise RoomClosed

    def _check_database(self, name: str | None) -> None:
        if None not in (name, self._database) and name != self._database:
            raise refuse(f"it is of the database {name!r}, and this room is on {self._database!r}")

    def in_caller_transaction(self, program: SqlProgram[R], adapter: Adapter, connection: Connection) -> Program[R]:
        try:
            return (yield from interpret(program, lambda step: self._perform(step, adapter, connection)))
        except Exception as error:
            if not self.dialect.errors.is_aborted(error):
                raise
            failed = self._failed_statements.get(id(connection))
            if failed is None:
                raise TransactionAborted from error
            raise TransactionAborted(failed.last, in_handler=True) from error

    def in_own_transaction(
        self, program: SqlProgram[R], connection: Connection, lock_timeout: float | None = None
    ) -> Program[R]:
        """Begins a transaction with the first statement that needs one. A lock timeout costs no round trip."""
        adapter = self._pool.adapter
        begins_at_once = self._always_begin or lock_timeout is not None
        has_begun = False

        def perform(step: Step) -> Program[object]:
            nonlocal has_begun
            if has_begun or not (begins_at_once or _needs_transaction(step)):
                return self._perform(step, adapter, connection)
            has_begun = True
            return self._begin_and_perform(step, adapter, connection, lock_timeout)

        try:
            result = yield from interpret(program, perform)
            if has_begun:
                yield call(adapter.execute, connection, "COMMIT")
        except BaseException as error:
            if has_begun and not self.dialect.errors.is_connection_lost(error):
                yield call(adapter.execute, connection, "ROLLBACK")
            raise
        return result

    def _begin_and_perform(
        self, step: Step, adapter: Adapter, connection: Connection, lock_timeout: float | None
    ) -> Program[object]:
        yield call(adapter.execute, connection, self.dialect.begin_with(lock_timeout))
        return (yield from self._perform(step, adapter, connection))

    def _perform(self, step: Step, adapter: Adapter, connection: Connection) -> Program[object]:
        if isinstance(step, Statement):
            text = self.engine.statements[step.name]
            return (yield call(adapter.fetch, connection, text.numbered, self._bind(text.parameters, step.parameters)))
        if isinstance(step, Many):
            return (yield from self._perform_many(step, adapter, connection)) if step.rows else 0
        yield call(adapter.execute, connection, step.text, may_take_long=True)
        return []

    def _perform_many(self, step: Many, adapter: Adapter, connection: Connection) -> Program[int]:
        """Runs a statement for each row of parameters; returns the number of changed rows."""
        raise NotImplementedError

    def _bind(self, names: Sequence[str], given: Mapping[str, object]) -> list[object]:
        if self._clock is not None and "now" in names:
            given = {**given, "now": self._clock.now()}
        return [given[name] for name in names]

    def is_transient(self, error: BaseException) -> bool:
        return self.dialect.errors.is_transient(error)

    def is_locked(self, error: BaseException) -> bool:
        return self.dialect.errors.is_lock_timeout(error)

    def check_not_inside(self, tx: Tx) -> None:
        """Writers lock rows, not the database: a write without `tx` need not wait for its own task."""

    @contextmanager
    def _rolling_back(self) -> Iterator[None]:
        """Around a rollback: ignores a lost connection, since the server rolls back then. The first error counts."""
        try:
            yield
        except Exception as error:
            if not self.dialect.errors.is_connection_lost(error):
                raise

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Around a commit: if the connection is lost, the server may have committed."""
        try:
            yield
        except Exception as error:
            if not self.dialect.errors.is_connection_lost(error):
                raise
            raise CommitUnknown(
                f"the connection was lost while the transaction was committed ({client_error_name(error)}), so "
                "it is not known whether it is committed"
            ) from None


def _needs_transaction(step: Step) -> bool:
    return not (isinstance(step, Statement) and step.autocommit)


class NetworkDriver(NetworkVerbs, Async):
    """For async code."""

    _mode = "async"
    _pool: AsyncPool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handler_slots = PerLoop(lambda: asyncio.Semaphore(self._max_handlers or 1_000_000))

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        self._check_open()
        async with self._handler_slots.get():
            checkout = await self._pool.acquire()
            broken = True
            try:
                await self._pool.begin(checkout)
                try:
                    with self._recording_failed_statements(checkout):
                        yield checkout.handle
                except BaseException:
                    with self._rolling_back():
                        await self._pool.rollback(checkout)
                        broken = False
                    raise
                with self._committing():
                    await self._pool.commit(checkout)
                broken = False
            finally:
                await asyncio.shield(self._pool.release(checkout, broken=broken))

    @contextmanager
    def _recording_failed_statements(self, checkout: Checkout) -> Iterator[None]:
        """Records the errors of statements in a handler's transaction, since the handler may catch them."""
        failed = self._failed_statements[id(checkout.connection)] = FailedStatements(self.dialect.errors)
        try:
            with self._pool.recording(checkout, failed.record):
                yield
        except TransactionRefused as error:
            if self._pool.adapter.is_closed(checkout.connection):
                raise ConnectionResetError("the connection of the transaction was lost") from None
            error.failed = failed.last
            raise
        except Exception as error:
            if self.dialect.errors.is_aborted(error.__cause__):  # the handler went on after a failed statement
                raise TransactionAborted(failed.last, in_handler=True) from error.__cause__
            raise
        finally:
            del self._failed_statements[id(checkout.connection)]


class SyncNetworkDriver(NetworkVerbs, Sync):
    """For sync code."""

    _mode = "sync"
    _pool: SyncPool

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self._check_open()
        checkout = self._pool.acquire()
        broken = True
        try:
            self._pool.begin(checkout)
            try:
                yield checkout.handle
            except BaseException:
                with self._rolling_back():
                    self._pool.rollback(checkout)
                    broken = False
                raise
            with self._committing():
                self._pool.commit(checkout)
            broken = False
        finally:
            self._pool.release(checkout, broken=broken)
