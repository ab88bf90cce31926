"""From a SQLite URL to a store."""

from __future__ import annotations

from typing import Any

from postroom._connect import StoreOptions
from postroom._stores.sql.drivers.sqlite import MEMORY, AiosqliteDriver, Sqlite3Driver
from postroom._stores.sql.engines.sqlite.engine import SqliteEngine
from postroom._stores.sql.store import SqlStore, SyncSqlStore
from postroom.errors import ArgumentValueError


def open_sqlite(rest: str, options: StoreOptions) -> Any:
    if not rest.startswith("/") or rest == "/":
        raise ArgumentValueError(
            "a SQLite URL has three slashes and a path: sqlite:///shop.db beside you, sqlite:////srv/shop.db anywhere"
        )
    if "?" in rest:
        raise ArgumentValueError("a SQLite URL takes no parameters after ?")
    options.refuse("sqlite:///", "schema", "pool")
    path, engine = rest[1:], SqliteEngine(options.prefix)
    settings = {"deploy_schema": options.deploy_schema, "durable": path != MEMORY}
    if options.colour == "async":
        return SqlStore(AiosqliteDriver(path, engine=engine, clock=options.clock), **settings)
    return SyncSqlStore(Sqlite3Driver(path, engine=engine, clock=options.clock), **settings)
