"""SQLite from sync code, with sqlite3."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from postroom._kernel.clock import Clock
from postroom._kernel.program import Program, Sync, verb
from postroom._stores.sql.sqlite.connection import connect
from postroom._stores.sql.sqlite.driver import SqliteVerbs
from postroom._stores.sql.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Tx


class Sqlite3Driver(SqliteVerbs, Sync):
    """One connection behind a lock, since SQLite has one writer at a time."""

    _mode = "sync"

    def __init__(self, path: str, *, engine: SqliteEngine | None = None, clock: Clock | None = None) -> None:
        super().__init__(path, engine=engine, clock=clock)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

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
            connection, _ = yield from self._callers.find(tx)
            return self._run_on(connection, program, in_caller_tx=True, write=write)
        with self._lock:
            connection = self._connection or self._connect()
            return self._run_on(connection, program, in_caller_tx=False, write=write)

    def _connect(self) -> sqlite3.Connection:
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
