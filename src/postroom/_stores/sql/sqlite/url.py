"""From a SQLite URL to a store."""

from __future__ import annotations

from postroom._stores.options import StoreOptions
from postroom._stores.sql.sqlite.aiosqlite_driver import AiosqliteDriver
from postroom._stores.sql.sqlite.connection import MEMORY
from postroom._stores.sql.sqlite.engine import SqliteEngine, shared_engine
from postroom._stores.sql.sqlite.probe import SqliteProbe
from postroom._stores.sql.sqlite.sqlite3_driver import Sqlite3Driver
from postroom._stores.sql.store import SqlStore, SyncSqlStore
from postroom.errors import ArgumentValueError

ERROR_PACKAGES = frozenset({"sqlite3"})
"""Packages whose errors say what is wrong with the database."""
TX_CLASSES = AiosqliteDriver.tx_classes
"""The class names of the transactions that handlers get."""

DIALECT = SqliteEngine.name


def make_engine(prefix: str, schema: str | None) -> SqliteEngine:
    """Returns the engine for `postroom.sqlalchemy`."""
    if schema is not None:
        raise ArgumentValueError(f"{SqliteEngine.name} knows no schema: leave it out")
    return SqliteEngine(prefix)


def server_of(_scheme: str, _rest: str) -> str:
    """Returns the name of this machine: all files are on it."""
    return DIALECT


def open_probe(_options: StoreOptions) -> SqliteProbe:
    """Returns a probe for all files."""
    return SqliteProbe()


def open_store(scheme: str, rest: str, options: StoreOptions) -> SqlStore | SyncSqlStore:
    if not rest.startswith("/") or rest == "/":
        raise ArgumentValueError(
            "a SQLite URL has three slashes and a path: sqlite:///shop.db beside you, sqlite:////srv/shop.db anywhere"
        )
    if "?" in rest:
        raise ArgumentValueError("a SQLite URL takes no parameters after ?")
    options.refuse(f"{scheme}:///", "schema", "pool", "token")
    path, engine = rest[1:], shared_engine(options.prefix)
    deploy_schema, durable, verified = options.deploy_schema, path != MEMORY, options.verified
    if options.mode == "async":
        driver = AiosqliteDriver(path, engine=engine, clock=options.clock)
        return SqlStore(driver, deploy_schema=deploy_schema, durable=durable, verified=verified)
    sync_driver = Sqlite3Driver(path, engine=engine, clock=options.clock)
    return SyncSqlStore(sync_driver, deploy_schema=deploy_schema, durable=durable, verified=verified)
