"""Runs a program on a connection, in a new transaction or in the caller's.

The whole program runs in the thread of the connection: for aiosqlite that is one visit to its thread for each verb, not
one for each statement, which would cost more than the statements do (docs/decisions/0004).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from operator import itemgetter
from typing import TypeVar

from postroom._kernel.program import sync_runner
from postroom._stores.sql.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import Many, SqlProgram, Statement, Step

R = TypeVar("R")
Start = Callable[[], SqlProgram[R]]
Now = Callable[[], int]
"""The clock. It is read when the transaction has begun, since BEGIN may wait for the lock."""


class Execution:
    """Performs the steps of one program. All of them have the same `:now`, in microseconds."""

    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection, now: int) -> None:
        self._statements = engine.statements
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # the caller's connection may have one
        self._now = now

    def __call__(self, step: Step) -> object:
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
    engine: SqliteEngine, connection: sqlite3.Connection, now: Now, program: Start[R], *, write: bool
) -> R:
    # IMMEDIATE takes the write lock first. A transaction that begins by reading fails at its first write if another
    # connection has written since, whatever the busy timeout.
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        result = sync_runner(program, Execution(engine, connection, now()))()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def in_caller_transaction(engine: SqliteEngine, connection: sqlite3.Connection, now: Now, program: Start[R]) -> R:
    """Runs inside a savepoint: an error leaves the caller's transaction as it was. Nothing is committed here."""
    if not connection.in_transaction:  # SQLAlchemy has begun, but sqlite3 begins with the first write
        connection.execute("BEGIN IMMEDIATE")
    connection.execute("SAVEPOINT postroom")
    try:
        result = sync_runner(program, Execution(engine, connection, now()))()
    except BaseException:
        if connection.in_transaction:  # some errors have rolled back the whole transaction
            connection.execute("ROLLBACK TO postroom")
            connection.execute("RELEASE postroom")
        raise
    connection.execute("RELEASE postroom")
    return result
