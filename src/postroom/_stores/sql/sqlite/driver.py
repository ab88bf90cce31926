"""What the drivers for SQLite share: the file, its engine, and which connections of callers they take."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import ClassVar, NoReturn, TypeVar

from postroom._kernel.clock import Clock, to_microseconds
from postroom._kernel.program import Mode
from postroom._kernel.scope import Scope
from postroom._stores.sql.sqlite.connection import MEMORY, check_same_database, is_busy, text_as_str
from postroom._stores.sql.sqlite.engine import SqliteEngine, shared_engine
from postroom._stores.sql.sqlite.execution import Now, Start, in_caller_transaction, in_own_transaction
from postroom._stores.sql.sqlite.forks import close_at_fork
from postroom._stores.sql.transactions import CallerConnections, Connection
from postroom.errors import RoomClosed, refuse
from postroom.spi import Tx

R = TypeVar("R")


class SqliteAdapter:
    """The connections of a client library that a caller may pass."""

    def __init__(self, mode: Mode, connection_class: str) -> None:
        self.mode = mode
        self.connection_classes = (connection_class,)

    def why_unusable(self, connection: Connection) -> str | None:
        if not connection.in_transaction:
            return 'it has no open transaction: begin one first, for instance with execute("BEGIN")'
        return None

    def is_transactional(self, _connection: Connection) -> bool:
        return True  # otherwise `in_caller_transaction` begins


_ADAPTERS = (SqliteAdapter("sync", "sqlite3.Connection"), SqliteAdapter("async", "aiosqlite.Connection"))


class SqliteVerbs:
    """The base of both drivers."""

    _mode: ClassVar[Mode]

    def __init__(self, path: str, *, engine: SqliteEngine | None = None, clock: Clock | None = None) -> None:
        self.path = path if path == MEMORY else os.path.abspath(path)  # noqa: PTH100 - the process may change folders
        self.name = f"sqlite:{path}"
        self.addresses = frozenset() if path == MEMORY else frozenset({f"sqlite:{os.path.realpath(path)}"})
        self.engine = engine or shared_engine()
        self._callers = CallerConnections(self.engine.name, self._mode, _ADAPTERS)
        self._now: Now = _system_now if clock is None else lambda: to_microseconds(clock.now())
        self._closed = False
        close_at_fork(self)

    def before_fork(self) -> None:
        raise NotImplementedError

    def after_fork(self) -> None:
        """See `forks`."""

    def check_not_inside(self, tx: Tx) -> None:
        """Refuses to wait for the write lock that the transaction of this task holds."""
        if tx is None and transaction_of_task.owner() is self:
            raise refuse(
                "there is none, and this is called inside a transaction of the same store, which holds the write lock: "
                "pass tx=tx"
            )

    def _run_on(self, connection: sqlite3.Connection, program: Start[R], *, in_caller_tx: bool, write: bool) -> R:
        if in_caller_tx:
            with text_as_str(connection):
                check_same_database(self.path, connection)
                return in_caller_transaction(self.engine, connection, self._now, program)
        return in_own_transaction(self.engine, connection, self._now, program, write=write)

    def is_transient(self, error: BaseException) -> bool:
        return is_busy(error)

    def is_locked(self, error: BaseException) -> bool:
        """Returns False: there is one write lock, and every writer waits for it."""
        return False

    def wait(self) -> NoReturn:
        """SQLite has no notifications."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise RoomClosed


def _system_now() -> int:
    return time.time_ns() // 1000


transaction_of_task: Scope[SqliteVerbs] = Scope("postroom_sqlite_transaction")
"""The driver whose transaction this task has open."""
