"""The caller's transaction: from whatever was passed as `tx` to the driver's connection below it, or a refusal.

SQLAlchemy's handles are recognised without importing SQLAlchemy: whoever passes one has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from postroom._kernel.program import Program, call
from postroom.errors import TransactionRefused

Colour = Literal["sync", "async"]


def refuse(why: str) -> TransactionRefused:
    return TransactionRefused(f"this tx cannot carry the write: {why}")


def open_connection(tx: Any, *, kind: str, driver: type, colour: Colour) -> Program[Any]:
    """The driver's connection below `tx`, which is in a transaction, of this kind of database and of this colour."""
    connection = tx
    if _is_sqlalchemy(tx):
        connection = yield from _below_sqlalchemy(tx, kind, colour)
    elif isinstance(tx, driver) and not tx.in_transaction:  # type: ignore[attr-defined]
        raise refuse('it has no open transaction: begin one first, for instance with execute("BEGIN")')
    if not isinstance(connection, driver):
        raise refuse(_what_it_is(connection, driver, kind, colour))
    return connection


def _what_it_is(connection: Any, driver: type, kind: str, colour: Colour) -> str:
    ours = f"{driver.__module__.partition('.')[0]}.{driver.__name__}"
    theirs = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
    other = "async code: use postroom.Postroom" if colour == "sync" else "sync code: use postroom.sync.Postroom"
    if theirs in {"sqlite3.Connection", "aiosqlite.Connection"} and kind == "sqlite":
        return f"a {theirs} is for {other}"
    return f"it is a {theirs}; this store takes a {ours} or a SQLAlchemy connection or session on {kind}"


def _is_sqlalchemy(tx: Any) -> bool:
    return any(base.__module__.startswith("sqlalchemy.") for base in type(tx).__mro__)


def _below_sqlalchemy(tx: Any, kind: str, colour: Colour) -> Program[Any]:
    handle = _Handle(tx)
    if handle.colour is None:
        raise refuse(f"it is a SQLAlchemy {type(tx).__name__}: pass a connection or a session")
    if handle.colour != colour:
        room = "postroom.Postroom" if handle.colour == "async" else "postroom.sync.Postroom"
        raise refuse(f"a SQLAlchemy {type(handle.handle).__name__} is for {handle.colour} code: use {room}")
    if not handle.handle.in_transaction():
        what = "session" if handle.is_session else "connection"
        raise refuse(f"this {what} has no open transaction: use `with {what}.begin():` around the change")
    connection = handle.handle
    if handle.is_session:
        connection = yield call(handle.handle.connection)
    if connection.dialect.name != kind:
        raise refuse(f"it is on {connection.dialect.name}, this store is on {kind}")
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
