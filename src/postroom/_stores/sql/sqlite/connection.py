"""Connections to SQLite: how they are opened, and which of the caller's are to the same file."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from postroom.errors import ArgumentValueError, refuse

MEMORY = ":memory:"
BUSY_SECONDS = 30.0
"""How long a connection waits for the write lock."""
OLDEST_SQLITE = (3, 35, 0)


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
    connection.execute("PRAGMA synchronous = FULL")  # a commit that has returned survives a power cut
    connection.execute("PRAGMA foreign_keys = OFF")
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switches the file to WAL. SQLite does not apply the busy timeout here, so this waits for other processes."""
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
    """Returns True if another connection has the lock."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    return isinstance(error, sqlite3.OperationalError) and code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def check_same_database(path: str, connection: sqlite3.Connection) -> None:
    """Refuses a connection to another file than the store's: the write would commit there."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's connection may have one
    [other] = [row[2] for row in cursor.execute("PRAGMA database_list").fetchall() if row[1] == "main"]
    if path == MEMORY or not other or not os.path.samefile(path, other):  # noqa: PTH121
        raise refuse(
            "its connection is to another database than this store's "
            f"({'an in-memory one' if not other else 'another file'}): open both on the same file"
        )


@contextmanager
def text_as_str(connection: sqlite3.Connection) -> Iterator[None]:
    """Replaces the caller's `text_factory` for a while."""
    factory, connection.text_factory = connection.text_factory, str
    try:
        yield
    finally:
        connection.text_factory = factory
