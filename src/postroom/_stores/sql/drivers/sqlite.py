"""SQLite through sqlite3, and through aiosqlite, whose connection is a sqlite3 connection with a thread.

Either way a whole program runs in one piece beside its connection: for async code that is one visit to aiosqlite's
thread per verb, not one per statement, which would cost more than the statements do (docs/decisions/0004).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from postroom._kernel.clock import Clock, SystemClock, to_microseconds
from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, Sync, call, run, verb
from postroom._kernel.scope import Scope
from postroom._stores.sql.drivers.callers import open_connection
from postroom._stores.sql.engines.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import Many, Script, Statement
from postroom.errors import ArgumentValueError, ExtraMissing, RoomClosed, refuse

if TYPE_CHECKING:
    import aiosqlite

R = TypeVar("R")

MEMORY = ":memory:"
BUSY_SECONDS = 30.0
OLDEST_SQLITE = (3, 35, 0)


class Execution:
    """One run of programs on one connection, at one moment."""

    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection, clock: Clock) -> None:
        self._statements = engine.statements
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # the caller's connection may have one
        self._now = to_microseconds(clock.now())

    def __call__(self, step: Statement | Many | Script) -> Any:
        if isinstance(step, Statement):
            parameters = {**step.parameters, "now": self._now}
            return self._cursor.execute(self._statements[step.name].named, parameters).fetchall()
        if isinstance(step, Many):
            return self._many(step)
        return self._cursor.execute(step.text).fetchall()

    def _many(self, step: Many) -> int:
        text = self._statements[step.name]
        rows = step.rows
        if text.columns != step.columns:
            pick = itemgetter(*map((*step.columns, "now").index, text.columns))
            rows = (
                [pick((*row, self._now)) for row in rows] if len(text.columns) > 1 else [(pick(row),) for row in rows]
            )
        self._cursor.executemany(text.positional, rows)
        return self._cursor.rowcount


def in_own_transaction(
    engine: SqliteEngine, connection: sqlite3.Connection, clock: Clock, program: Program[R], *, write: bool
) -> R:
    # IMMEDIATE: a transaction that begins by reading cannot be upgraded while another writes, whatever the timeout.
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        result = run(program, Execution(engine, connection, clock))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def in_callers_transaction(
    engine: SqliteEngine, connection: sqlite3.Connection, clock: Clock, program: Program[R]
) -> R:
    """Inside a savepoint: an error leaves the caller's transaction as it was, and nothing is ever committed here."""
    if not connection.in_transaction:  # SQLAlchemy has begun, but sqlite3 waits for the first write to do so
        connection.execute("BEGIN IMMEDIATE")
    connection.execute("SAVEPOINT postroom")
    try:
        result = run(program, Execution(engine, connection, clock))
    except BaseException:
        if connection.in_transaction:  # some errors have rolled back everything already
            connection.execute("ROLLBACK TO postroom")
            connection.execute("RELEASE postroom")
        raise
    connection.execute("RELEASE postroom")
    return result


@contextmanager
def _text_as_str(connection: sqlite3.Connection) -> Iterator[None]:
    theirs, connection.text_factory = connection.text_factory, str
    try:
        yield
    finally:
        connection.text_factory = theirs


def connect(path: str) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise ArgumentValueError(
            f"SQLite {sqlite3.sqlite_version} is too old: Postroom needs "
            f"{'.'.join(map(str, OLDEST_SQLITE))} or later, for RETURNING"
        )
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")  # a commit that was answered survives a power cut
    connection.execute("PRAGMA foreign_keys = OFF")
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Where several processes switch a new file at once, SQLite says busy without waiting: so we wait ourselves."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(0.005)
        else:
            return


def is_busy(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    return isinstance(error, sqlite3.OperationalError) and code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def check_same_database(store_path: str, connection: sqlite3.Connection) -> None:
    """Refuse a connection to another file: the write would commit somewhere else."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's may make anything of a row
    [theirs] = [row[2] for row in cursor.execute("PRAGMA database_list").fetchall() if row[1] == "main"]
    if store_path == MEMORY or not theirs or not os.path.samefile(store_path, theirs):  # noqa: PTH121
        raise refuse(
            "its connection is to another database than this store's "
            f"({'an in-memory one' if not theirs else 'another file'}): open both on the same file"
        )


class SqliteVerbs:
    """What both drivers share."""

    def __init__(self, path: str, *, engine: SqliteEngine | None = None, clock: Clock | None = None) -> None:
        self.path = path if path == MEMORY else os.path.abspath(path)  # noqa: PTH100 - the process may change folders
        self.name = f"sqlite:{path}"
        self.addresses = frozenset() if path == MEMORY else frozenset({f"sqlite:{os.path.realpath(path)}"})
        self.engine = engine or SqliteEngine()
        self._clock = clock or SystemClock()
        self._closed = False
        _forget_at_fork.add(self)

    def before_fork(self) -> None:
        """Close idle connections: SQLite's must not cross a fork. Both processes open new ones when they need them."""
        raise NotImplementedError

    def after_fork(self) -> None:
        """In both processes."""

    def check_not_inside(self, tx: Any) -> None:
        """Refuse to wait for the lock that this very task holds."""
        if tx is None and _inside.owner() is self:
            raise refuse(
                "there is none, and this is called inside a transaction of the same store, which holds the write lock: "
                "pass tx=tx"
            )

    def _run_on(
        self, connection: sqlite3.Connection, program: Callable[[], Program[R]], *, callers: bool, write: bool
    ) -> R:
        if callers:
            with _text_as_str(connection):
                check_same_database(self.path, connection)
                return in_callers_transaction(self.engine, connection, self._clock, program())
        return in_own_transaction(self.engine, connection, self._clock, program(), write=write)

    def is_transient(self, error: BaseException) -> bool:
        return is_busy(error)

    def is_locked(self, error: BaseException) -> bool:
        """There is one lock for all, and everybody waits for it."""
        return False

    def wait(self) -> Any:
        """SQLite tells nobody anything."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise RoomClosed


class _Sqlite3Wire:
    """The connections that a caller may pass to sync code."""

    name = "sqlite3.Connection"

    def is_mine(self, connection: Any) -> bool:
        return isinstance(connection, sqlite3.Connection)

    def trouble(self, connection: Any) -> str | None:
        if not connection.in_transaction:
            return 'it has no open transaction: begin one first, for instance with execute("BEGIN")'
        return None

    def begun(self, _connection: Any) -> bool:
        return True  # otherwise `in_callers_transaction` begins


class _AiosqliteWire(_Sqlite3Wire):
    """The connections that a caller may pass to async code."""

    name = "aiosqlite.Connection"

    def is_mine(self, connection: Any) -> bool:
        return isinstance(connection, _import_aiosqlite().Connection)


_inside: Scope[SqliteVerbs] = Scope("postroom_inside")
"""The driver whose transaction this task has open."""

# A fork is an event of the process, so this is the one thing that belongs to no object.
_forget_at_fork: weakref.WeakSet[SqliteVerbs] = weakref.WeakSet()


def _before_fork() -> None:
    for driver in list(_forget_at_fork):
        driver.before_fork()


def _after_fork() -> None:
    for driver in list(_forget_at_fork):
        driver.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Sqlite3Driver(SqliteVerbs, Sync):
    """For sync code: one connection behind a lock, since SQLite has one writer anyway."""

    def __init__(self, path: str, *, engine: SqliteEngine | None = None, clock: Clock | None = None) -> None:
        super().__init__(path, engine=engine, clock=clock)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @verb
    def transact(
        self,
        program: Callable[[], Program[Any]],
        *,
        tx: Any = None,
        write: bool = True,
        patience: float | None = None,
    ) -> Program[Any]:
        self._check_open()
        if tx is not None:
            connection, _ = yield from open_connection(tx, kind="sqlite", colour="sync", wires=[_Sqlite3Wire()])
            return self._run_on(connection, program, callers=True, write=write)
        with self._lock:
            return self._run_on(self._own(), program, callers=False, write=write)

    def _own(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path)
        return self._connection

    def before_fork(self) -> None:
        self._lock.acquire()
        self._disconnect()

    def after_fork(self) -> None:
        self._lock.release()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        self._check_open()
        connection = connect(self.path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()


class AiosqliteDriver(SqliteVerbs, Async):
    """For async code."""

    tx_classes = ("aiosqlite.Connection",)

    def __init__(self, path: str, *, engine: SqliteEngine | None = None, clock: Clock | None = None) -> None:
        super().__init__(path, engine=engine, clock=clock)
        self._connections: dict[bool, aiosqlite.Connection] = {}
        """By whether they write: a reader need not wait behind a writer that waits for the lock."""
        self._spare: list[aiosqlite.Connection] = []
        self._opening = PerLoop(asyncio.Lock)
        self._one_writer = PerLoop(asyncio.Lock)

    @verb
    def transact(
        self,
        program: Callable[[], Program[Any]],
        *,
        tx: Any = None,
        write: bool = True,
        patience: float | None = None,
    ) -> Program[Any]:
        self._check_open()
        if tx is None:
            connection = yield from self._own(write=write or self.path == MEMORY)
        else:
            connection, _ = yield from open_connection(tx, kind="sqlite", colour="async", wires=[_AiosqliteWire()])
        return (yield call(self._visit, connection, program, callers=tx is not None, write=write))

    async def _visit(
        self, connection: aiosqlite.Connection, program: Callable[[], Program[R]], *, callers: bool, write: bool
    ) -> R:
        """Run all of a program beside the connection, in its thread.

        Not by aiosqlite's own method: its thread dies where the event loop has closed before the work is done.
        """
        if not connection._running:  # noqa: SLF001
            raise ValueError("this connection is closed")
        visit = _Visit(partial(self._run_on, connection._conn, program, callers=callers, write=write))  # noqa: SLF001
        connection._tx.put_nowait((None, visit))  # noqa: SLF001
        result: R = await visit.result
        return result

    async def _connect(self) -> aiosqlite.Connection:
        pending: aiosqlite.Connection = _import_aiosqlite().connect(self.path)
        pending._connector = lambda: connect(self.path)  # noqa: SLF001 - opened in its thread, in our way
        pending._thread.daemon = True  # noqa: SLF001 - a forgotten close() must not keep a script from ending
        try:
            return await pending
        except Exception:
            # The thread was told to end, and has nothing else to do. Later it would find the event loop closed.
            pending._thread.join()  # noqa: SLF001
            raise

    def _own(self, *, write: bool) -> Program[aiosqlite.Connection]:
        opening = self._opening.get()
        yield call(opening.acquire)
        try:
            if write not in self._connections:
                self._connections[write] = yield call(self._connect)
            return self._connections[write]
        finally:
            opening.release()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """On a connection of its own. One at a time: the others would only wait for SQLite's lock, and time out."""
        async with self._one_writer.get():
            with _inside.opened(self):
                async with self._transaction() as connection:
                    yield connection

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        self._check_open()
        connection = self._spare.pop() if self._spare else await self._connect()
        try:
            await connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                await connection.commit()
            except BaseException:
                await connection.rollback()
                raise
        except BaseException:
            await connection.close()
            raise
        self._spare.append(connection)

    @verb
    def close(self) -> Program[None]:
        self._closed = True
        open_ones = [*self._spare, *self._connections.values()]
        self._spare, self._connections = [], {}
        for connection in open_ones:
            yield call(connection.close)

    def before_fork(self) -> None:
        idle = [*self._spare, *self._connections.values()]
        self._spare, self._connections = [], {}
        for connection in idle:
            connection.stop()  # in its thread, after its work
            connection._thread.join()  # noqa: SLF001


class _Visit:
    """Work for the thread of a connection. It has no repr: aiosqlite logs what it runs, and programs hold payloads."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.result = self._loop.create_future()

    def __call__(self) -> None:
        try:
            answer = partial(self._answer, self.result.set_result, self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            answer = partial(self._answer, self.result.set_exception, error)
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(answer)

    def _answer(self, tell: Callable[[Any], None], answer: Any) -> None:
        if not self.result.done():  # otherwise it was cancelled
            tell(answer)


def _import_aiosqlite() -> Any:
    try:
        import aiosqlite
    except ImportError as error:
        raise ExtraMissing("SQLite from async code needs aiosqlite: pip install 'postroom[sqlite]'") from error
    return aiosqlite
