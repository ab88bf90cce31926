"""The caller's transaction: from whatever was passed as `tx` to the driver's connection below it, or a refusal.

SQLAlchemy's and Django's handles are recognised without importing either: whoever passes one has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from postroom._kernel.program import Program, call
from postroom.errors import refuse

Colour = Literal["sync", "async"]

FAILED = "its transaction has failed: roll it back first"

_DRIVERS: dict[str, tuple[str, Colour]] = {
    "sqlite3.Connection": ("sqlite", "sync"),
    "aiosqlite.Connection": ("sqlite", "async"),
    "psycopg.Connection": ("postgresql", "sync"),
    "psycopg.AsyncConnection": ("postgresql", "async"),
    "asyncpg.Connection": ("postgresql", "async"),
    "asyncpg.PoolConnectionProxy": ("postgresql", "async"),
}


class Wire(Protocol):
    """One driver's connections, as far as a caller may pass them."""

    @property
    def name(self) -> str:
        """What its connection is called."""

    def is_mine(self, connection: Any) -> bool: ...

    def trouble(self, connection: Any) -> str | None:
        """Why a connection that the caller passed cannot carry a write, if so."""

    def begun(self, connection: Any) -> bool:
        """Whether a transaction is open below, or will be by the first statement."""


def open_connection(tx: Any, *, kind: str, colour: Colour, wires: Sequence[Wire]) -> Program[tuple[Any, Any]]:
    """The driver's connection below `tx`, in a transaction of this kind of database and this colour; and its wire."""
    if _is_of(tx, "sqlalchemy"):
        connection = yield from _below_sqlalchemy(tx, kind, colour, wires)
    elif _is_of(tx, "django"):
        connection = _below_django(tx, kind, colour)
    else:
        connection = tx
    theirs = _driver_of(connection)
    wire = next((wire for wire in wires if theirs is not None and wire.is_mine(connection)), None)
    if wire is None:
        raise refuse(_what_it_is(connection, kind, colour, wires))
    trouble = _trouble(wire, connection) if connection is tx else None
    if trouble is not None:
        raise refuse(trouble)
    return connection, wire


def _is_of(tx: Any, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in type(tx).__mro__)


def class_names(connection: Any) -> list[str]:
    """What its class and the bases of that are called, by the packages that they come from."""
    return [f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(connection).__mro__]


def _driver_of(connection: Any) -> tuple[str, Colour] | None:
    """The kind of database and the colour of a driver's connection; None is something else, such as its pool."""
    return next((_DRIVERS[name] for name in class_names(connection) if name in _DRIVERS), None)


def _trouble(wire: Wire, connection: Any) -> str | None:
    try:
        return wire.trouble(connection)
    except Exception as error:
        raise refuse("its connection is closed, or was given back to its pool") from error


def _what_it_is(connection: Any, kind: str, colour: Colour, wires: Sequence[Wire]) -> str:
    theirs = class_names(connection)[0]
    other = "async code: use postroom.Postroom" if colour == "sync" else "sync code: use postroom.sync.Postroom"
    if _driver_of(connection) == (kind, "async" if colour == "sync" else "sync"):
        return f"{theirs} is for {other}"
    if theirs == "psycopg2.connection":
        return "its connection is one of psycopg2: use psycopg 3, with SQLAlchemy by postgresql+psycopg://"
    ours = " or ".join(wire.name for wire in wires)
    return f"it is a {theirs}; this store takes {ours}, or a SQLAlchemy connection or session on {kind}"


def _below_django(tx: Any, kind: str, colour: Colour) -> Any:
    if not hasattr(tx, "in_atomic_block"):
        raise refuse(f"it is Django's {type(tx).__name__}: pass django.db.connection")
    if colour == "async":
        raise refuse("Django's connection is for sync code: use postroom.sync.Postroom")
    if tx.vendor != kind:
        raise refuse(f"it is on {tx.vendor}, this store is on {kind}")
    if not tx.in_atomic_block:
        raise refuse("Django's connection has no open transaction: use `with transaction.atomic():` around the change")
    if tx.needs_rollback:
        raise refuse(FAILED)
    return tx.connection


def _below_sqlalchemy(tx: Any, kind: str, colour: Colour, wires: Sequence[Wire]) -> Program[Any]:
    handle = _Handle(tx)
    if handle.colour is None:
        raise refuse(f"it is a SQLAlchemy {type(tx).__name__}: pass a connection or a session")
    if handle.colour != colour:
        room = "postroom.Postroom" if handle.colour == "async" else "postroom.sync.Postroom"
        raise refuse(f"a SQLAlchemy {type(handle.handle).__name__} is for {handle.colour} code: use {room}")
    if not handle.handle.in_transaction():
        what = "session" if handle.is_session else "connection"
        begin = f"{'async ' if colour == 'async' else ''}with {what}.begin():"
        raise refuse(f"this {what} has no open transaction: use `{begin}` around the change")
    if handle.is_session and not handle.handle.is_active:
        raise refuse(FAILED)
    connection = handle.handle
    if handle.is_session:
        connection = yield call(handle.handle.connection)
    if connection.dialect.name != kind:
        raise refuse(f"it is on {connection.dialect.name}, this store is on {kind}")
    raw = yield from _raw(connection, colour)
    if any(wire.is_mine(raw) and not wire.begun(raw) for wire in wires):
        # SQLAlchemy has begun, but some of its drivers wait for the first statement of theirs to do so.
        yield call(connection.exec_driver_sql, "SELECT 1")
        if any(wire.is_mine(raw) and not wire.begun(raw) for wire in wires):
            raise refuse("its isolation level is AUTOCOMMIT, so that nothing could be rolled back")
    return raw


def _raw(connection: Any, colour: Colour) -> Program[Any]:
    if colour == "async":
        raw = yield call(connection.get_raw_connection)
        return raw.driver_connection
    return connection.connection.driver_connection


class _Handle:
    """What a SQLAlchemy object is, told by the classes that SQLAlchemy itself has loaded."""

    def __init__(self, tx: Any) -> None:
        self.handle = (
            tx() if self._is(tx, "orm", "scoped_session") or self._is_async(tx, "async_scoped_session") else tx
        )
        self.is_session = self._is(self.handle, "orm", "Session") or self._is_async(self.handle, "AsyncSession")
        self.colour: Colour | None = None
        if self._is(self.handle, "orm", "Session") or self._is(self.handle, "engine", "Connection"):
            self.colour = "sync"
        elif self._is_async(self.handle, "AsyncSession") or self._is_async(self.handle, "AsyncConnection"):
            self.colour = "async"

    def _is(self, value: Any, module: str, name: str) -> bool:
        cls = getattr(sys.modules.get(f"sqlalchemy.{module}"), name, None)
        return cls is not None and isinstance(value, cls)

    def _is_async(self, value: Any, name: str) -> bool:
        return self._is(value, "ext.asyncio", name)
