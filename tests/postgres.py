"""A PostgreSQL database for this test process, with our tables in it; tests clean it, and do not make it anew."""

from __future__ import annotations

import atexit
import functools
from typing import Any
from urllib.parse import urlsplit

import psycopg
from tools.servers.base import ServerMissing, missing
from tools.servers.leftovers import new_name, remove_leftovers
from tools.servers.postgres import default_postgres

from postroom.sync import Postroom


def server() -> str:
    """The URL of a server; without one, the test is skipped, or fails where it must not be."""
    try:
        return default_postgres()
    except ServerMissing as error:
        missing(str(error))


def create_database(*, durable: bool = False) -> str:
    """Creates a database with a random name, which is dropped when this process ends. Returns its URL.

    Most tests are about behaviour, not about power cuts: they do not wait for the disk.
    """
    name = new_name()
    admin = server()
    _remove_leftovers(admin)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 ENCODING UTF8'.encode())
        if not durable:
            connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    atexit.register(_drop, admin, name)
    return urlsplit(admin)._replace(path=f"/{name}").geturl()


def _drop(admin: str, name: str) -> None:
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())


_remove_leftovers = functools.cache(remove_leftovers)


@functools.cache
def shared_database() -> str:
    """The database of this process, with the tables of the default names."""
    url = create_database()
    with Postroom(url) as room:
        room.migrate()
    return url


_CLEANING = ";".join(
    [
        *(
            f"DELETE FROM postroom_{table}"
            for table in ("message", "queue", "ledger", "nudge", "box", "join_member", "join")
        ),
        "UPDATE postroom_attendant SET until = NULL WHERE until IS NOT NULL",
    ]
)


def clean_database() -> str:
    """Returns the URL of the shared database, after it has deleted all rows."""
    return clean(shared_database())


def clean(url: str) -> str:
    """Deletes all rows of a database. Returns its URL."""
    try:
        _cleaner(url).execute(_CLEANING.encode())
    except psycopg.OperationalError:  # a test has ended all sessions of the database
        _cleaner.cache_clear()
        _cleaner(url).execute(_CLEANING.encode())
    return url


@functools.cache
def _cleaner(url: str) -> psycopg.Connection[Any]:
    """A connection that stays open: to connect takes longer than to delete."""
    connection = psycopg.connect(url, autocommit=True)
    atexit.register(connection.close)
    return connection


def with_driver(url: str, driver: str) -> str:
    """The URL that chooses a driver: postgresql+asyncpg:// or postgresql+psycopg://."""
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)
