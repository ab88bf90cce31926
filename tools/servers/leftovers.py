"""The names of test databases, and the removal of those that crashed runs left behind.

A name says which process made the database. It is removed once that process is gone, or once it is a day old, and only
while no connection is open.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import socket
from datetime import timedelta
from pathlib import Path

import psycopg
from psycopg import sql

_OURS = re.compile(r"postroom_test_(?:(?P<machine>[0-9a-f]{8})_(?P<process>\d+)_)?[0-9a-f]{12}")
_OLD = timedelta(days=1)
_AT_ONCE = 20
"""PostgreSQL writes a checkpoint for each database that is dropped, so one process drops a few."""

# The time of creation is that of a file which is never changed. Only some roles may look: NULL for the others.
_FREE = """
SELECT datname,
       CASE WHEN has_function_privilege('pg_stat_file(text)', 'execute')
            THEN now() - (pg_stat_file('base/' || oid || '/PG_VERSION', true)).modification END
FROM pg_database d
WHERE datname LIKE 'postroom\\_test\\_%' AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datid = d.oid)
"""


def new_name() -> str:
    """A name that no other process uses."""
    return f"postroom_test_{_machine()}_{os.getpid()}_{secrets.token_hex(6)}"


def remove_leftovers(admin: str) -> list[str]:
    """Drop databases that crashed runs left on this server; return their names."""
    with psycopg.connect(admin, autocommit=True) as connection:
        rows: list[tuple[str, timedelta | None]] = connection.execute(_FREE.encode()).fetchall()
        names = [name for name, age in rows if is_leftover(name, age)][:_AT_ONCE]
        for name in names:
            # Not FORCE: a connection that was opened in the meantime keeps the database. Another process may drop it.
            with contextlib.suppress(psycopg.Error):
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
    return names


def is_leftover(name: str, age: timedelta | None) -> bool:
    """Whether a database without connections may be removed."""
    found = _OURS.fullmatch(name)
    if found is None:
        return False
    if found["machine"] == _machine() and not _runs(int(found["process"])):
        return True
    return age is not None and age > _OLD


@functools.cache
def _machine() -> str:
    """Where a process number has a meaning: a host, and in a container its own numbers."""
    namespace = Path("/proc/self/ns/pid")
    numbers = namespace.readlink() if namespace.exists() else ""
    return hashlib.sha256(f"{socket.gethostname()} {numbers}".encode()).hexdigest()[:8]


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
