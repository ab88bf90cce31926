"""SQLite from async code, with aiosqlite, whose connection is a sqlite3 connection with a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from postroom._kernel.clock import Clock
from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, call, verb
from postroom._stores.client_imports import import_client
from postroom._stores.sql.sqlite.connection import MEMORY, connect
from postroom._stores.sql.sqlite.driver import SqliteVerbs, transaction_of_task
from postroom._stores.sql.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Tx

if TYPE_CHECKING:
    import aiosqlite

R = TypeVar("R")
T = TypeVar("T")


class AiosqliteDriver(SqliteVerbs, Async):
    """One connection that writes, one that reads, and one for each open transaction of a handler."""

    _mode = "async"
    tx_classes = ("aiosqlite.Connection",)

    def __init__(self, path: str, *, engine: SqliteEngine | None = None, clock: Clock | None = None) -> None:
        super().__init__(path, engine=engine, clock=clock)
        self._connections: dict[bool, aiosqlite.Connection] = {}
        """By whether they write: a reader does not wait behind a writer that waits for the lock."""
        self._idle: list[aiosqlite.Connection] = []
        """For the transactions of handlers."""
        self._opening = PerLoop(asyncio.Lock)
        self._one_writer = PerLoop(asyncio.Lock)

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
        if tx is None:
            connection = yield from self._connected(write=write or self.path == MEMORY)
        else:
            connection, _ = yield from self._callers.find(tx)
        return (yield call(self._run_in_thread, connection, program, in_caller_tx=tx is not None, write=write))

    async def _run_in_thread(
        self, connection: aiosqlite.Connection, program: Callable[[], SqlProgram[R]], *, in_caller_tx: bool, write: bool
    ) -> R:
        """Runs a whole program in the thread of the connection.

        Not by aiosqlite's own method: its thread ends with an error if the event loop closes before the work is done.
        """
        if not connection._running:  # noqa: SLF001
            raise ValueError("this connection is closed")
        work = _Work(
            partial(self._run_on, connection._conn, program, in_caller_tx=in_caller_tx, write=write)  # noqa: SLF001
        )
        connection._tx.put_nowait((None, work))  # noqa: SLF001
        return await work.result

    async def _connect(self) -> aiosqlite.Connection:
        pending: aiosqlite.Connection = _import_aiosqlite().connect(self.path)
        pending._connector = lambda: connect(self.path)  # noqa: SLF001 - opened in its thread, with our settings
        pending._thread.daemon = True  # noqa: SLF001 - a script without close() must be able to end
        try:
            return await pending
        except Exception:
            # The thread is about to end. Without this it might find the event loop closed, and report that.
            pending._thread.join()  # noqa: SLF001
            raise

    def _connected(self, *, write: bool) -> Program[aiosqlite.Connection]:
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
        """One at a time: others would wait for SQLite's lock in their threads, and time out."""
        async with self._one_writer.get():
            with transaction_of_task.opened(self):
                async with self._transaction() as connection:
                    yield connection

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        self._check_open()
        connection = self._idle.pop() if self._idle else await self._connect()
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
        self._idle.append(connection)

    @verb
    def close(self) -> Program[None]:
        self._closed = True
        for connection in self._forget_connections():
            yield call(connection.close)

    def before_fork(self) -> None:
        for connection in self._forget_connections():
            connection.stop()  # in its thread, after its work
            connection._thread.join()  # noqa: SLF001

    def _forget_connections(self) -> list[aiosqlite.Connection]:
        connections = [*self._idle, *self._connections.values()]
        self._idle, self._connections = [], {}
        return connections


class _Work(Generic[R]):
    """Work for the thread of a connection. It has no repr: aiosqlite logs what it runs, and programs have payloads."""

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[R] = self._loop.create_future()

    def __call__(self) -> None:
        try:
            finish = partial(self._finish, self.result.set_result, self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            finish = partial(self._finish, self.result.set_exception, error)
        with suppress(RuntimeError):  # the loop has closed, and with it the task that waited
            self._loop.call_soon_threadsafe(finish)

    def _finish(self, set_outcome: Callable[[T], None], outcome: T) -> None:
        if not self.result.done():  # otherwise it was cancelled
            set_outcome(outcome)


_import_aiosqlite = partial(import_client, "aiosqlite", needed_by="SQLite from async code", extra="sqlite")
