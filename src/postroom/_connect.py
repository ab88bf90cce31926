"""The composition root: from a URL to a store. Engines and drivers are imported only when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from postroom._kernel.clock import Clock
from postroom._kernel.observer import Observer
from postroom._kernel.retry import StorageRetry
from postroom.errors import ArgumentTypeError, ArgumentValueError

Colour = Literal["sync", "async"]
ENVIRONMENT = "POSTROOM_URL"


def open_store(
    url: str | None,
    *,
    colour: Colour,
    prefix: str = "postroom_",
    deploy_schema: bool = False,
    clock: Clock | None = None,
) -> Any:
    """A store for a URL. Nothing is opened until its first verb."""
    scheme, rest = _split(_given(url))
    if scheme == "sqlite":
        return _sqlite(rest, colour, prefix, clock, deploy_schema=deploy_schema)
    if scheme == "memory":
        return _memory(rest, colour, clock)
    raise ArgumentValueError(f"there is no store for {scheme}://; this version has sqlite:/// and memory://")


def observe(store: Any, observers: Sequence[Observer], retry: StorageRetry, colour: Colour) -> Any:
    from postroom._stores.observed import ObservedStore, SyncObservedStore

    wrap: Callable[..., Any] = ObservedStore if colour == "async" else SyncObservedStore
    return wrap(store, observers, retry)


def _given(url: Any) -> str:
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            raise ArgumentTypeError(f"no database: pass a URL such as sqlite:///shop.db, or set {ENVIRONMENT}")
    if not isinstance(url, str):
        raise ArgumentTypeError(f"url must be a str, not {type(url).__name__}")
    return url


def _split(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        # The text is not repeated: it may be a connection string with a password.
        raise ArgumentValueError("this is not a URL: it should look like sqlite:///shop.db or memory://")
    return scheme, rest


def _memory(rest: str, colour: Colour, clock: Clock | None) -> Any:
    from postroom._stores.memory import MemoryStore, SyncMemoryStore

    if rest:
        raise ArgumentValueError("memory:// takes nothing after it: each room has a memory of its own")
    return MemoryStore(clock=clock) if colour == "async" else SyncMemoryStore(clock=clock)


def _sqlite(rest: str, colour: Colour, prefix: str, clock: Clock | None, *, deploy_schema: bool) -> Any:
    from postroom._stores.sql.drivers.sqlite import MEMORY, AiosqliteDriver, Sqlite3Driver
    from postroom._stores.sql.engines.sqlite.engine import SqliteEngine
    from postroom._stores.sql.statements import check_prefix
    from postroom._stores.sql.store import SqlStore, SyncSqlStore

    if not rest.startswith("/") or rest == "/":
        raise ArgumentValueError(
            "a SQLite URL has three slashes and a path: sqlite:///shop.db beside you, sqlite:////srv/shop.db anywhere"
        )
    if "?" in rest:
        raise ArgumentValueError("a SQLite URL takes no parameters after ?")
    path, engine = rest[1:], SqliteEngine(check_prefix(prefix))
    durable = path != MEMORY
    if colour == "async":
        return SqlStore(AiosqliteDriver(path, engine=engine, clock=clock), deploy_schema=deploy_schema, durable=durable)
    return SyncSqlStore(Sqlite3Driver(path, engine=engine, clock=clock), deploy_schema=deploy_schema, durable=durable)
