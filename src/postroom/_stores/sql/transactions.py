"""The caller's transaction: finds the client library's connection below the `tx` that a caller passes, or refuses it.

Objects of SQLAlchemy and Django are recognised by the names of their classes, without importing either package.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from postroom._kernel.program import Mode, Program, call
from postroom.errors import refuse
from postroom.spi import Tx

Connection: TypeAlias = Any
"""A connection of a client library. Only its adapter knows more."""

FAILED = "its transaction has failed: roll it back first"


class CallerAdapter(Protocol):
    """The connections of one client library, as far as a caller may pass them as `tx`."""

    @property
    def mode(self) -> Mode: ...

    @property
    def connection_classes(self) -> tuple[str, ...]:
        """Their classes, by package and class name. Error texts show the first."""

    def why_unusable(self, connection: Connection) -> str | None:
        """Returns why a connection cannot carry a write; None if it can."""

    def is_transactional(self, connection: Connection) -> bool:
        """Returns True if a transaction is open, or if the next statement begins one."""


A = TypeVar("A", bound=CallerAdapter)


class CallerConnections(Generic[A]):
    """The connections that callers may pass as `tx` to one driver."""

    def __init__(
        self, database: str, mode: Mode, adapters: Sequence[A], *, advice: Mapping[str, str] | None = None
    ) -> None:
        """`database`: the kind, as SQLAlchemy and Django call it. `adapters`: of both modes, so that an error text can
        say that a connection is for the other mode. `advice`: error texts by class name, for connections of client
        libraries that are not supported."""
        self._database = database
        self._mode = mode
        self._adapters = {name: adapter for adapter in adapters for name in adapter.connection_classes}
        self._accepted = [adapter.connection_classes[0] for adapter in adapters if adapter.mode == mode]
        self._advice = advice or {}

    def find(self, tx: Tx) -> Program[tuple[Connection, A]]:
        """Returns the connection below `tx`, with an open transaction, and its adapter. Raises TransactionRefused."""
        if _is_of(tx, "sqlalchemy"):
            connection = yield from self._below_sqlalchemy(tx)
        elif _is_of(tx, "django"):
            connection = self._below_django(tx)
        else:
            connection = tx
        adapter = self._adapter_of(connection)
        if adapter is None or adapter.mode != self._mode:
            raise refuse(self._why_refused(connection, adapter))
        why = _why_unusable(adapter, connection) if connection is tx else None
        if why is not None:
            raise refuse(why)
        return connection, adapter

    def _adapter_of(self, connection: Connection) -> A | None:
        return next((self._adapters[name] for name in class_names(connection) if name in self._adapters), None)

    def _why_refused(self, connection: Connection, adapter: A | None) -> str:
        name = class_names(connection)[0]
        if adapter is not None:
            other = "async code: use postroom.Postroom" if self._mode == "sync" else _USE_SYNC
            return f"{name} is for {other}"
        if name in self._advice:
            return self._advice[name]
        accepted = " or ".join(self._accepted)
        return f"it is a {name}; this store takes {accepted}, or a SQLAlchemy connection or session on {self._database}"

    def _below_django(self, tx: Tx) -> Connection:
        if not hasattr(tx, "in_atomic_block"):
            raise refuse(f"it is Django's {type(tx).__name__}: pass django.db.connection")
        if self._mode == "async":
            raise refuse(f"Django's connection is for {_USE_SYNC}")
        if tx.vendor != self._database:
            raise refuse(f"it is on {tx.vendor}, this store is on {self._database}")
        if not tx.in_atomic_block:
            raise refuse(
                "Django's connection has no open transaction: use `with transaction.atomic():` around the change"
            )
        if tx.needs_rollback:
            raise refuse(FAILED)
        return tx.connection

    def _below_sqlalchemy(self, tx: Tx) -> Program[Connection]:
        handle = _Handle(tx)
        if handle.mode is None:
            raise refuse(f"it is a SQLAlchemy {type(tx).__name__}: pass a connection or a session")
        if handle.mode != self._mode:
            room = "postroom.Postroom" if handle.mode == "async" else "postroom.sync.Postroom"
            raise refuse(f"a SQLAlchemy {type(handle.handle).__name__} is for {handle.mode} code: use {room}")
        if not handle.handle.in_transaction():
            what = "session" if handle.is_session else "connection"
            begin = f"{'async ' if self._mode == 'async' else ''}with {what}.begin():"
            raise refuse(f"this {what} has no open transaction: use `{begin}` around the change")
        if handle.is_session and not handle.handle.is_active:
            raise refuse(FAILED)
        connection = handle.handle
        if handle.is_session:
            connection = yield call(handle.handle.connection)
        if connection.dialect.name != self._database:
            raise refuse(f"it is on {connection.dialect.name}, this store is on {self._database}")
        raw = yield from self._raw_connection(connection)
        if not self._is_transactional(raw):
            # SQLAlchemy has begun, but some client libraries begin with the first statement.
            yield call(connection.exec_driver_sql, "SELECT 1")
            if not self._is_transactional(raw):
                raise refuse("its isolation level is AUTOCOMMIT, so that nothing could be rolled back")
        return raw

    def _is_transactional(self, raw: Connection) -> bool:
        """Returns True also for a connection without an adapter of this mode, which is refused later."""
        adapter = self._adapter_of(raw)
        return adapter is None or adapter.mode != self._mode or adapter.is_transactional(raw)

    def _raw_connection(self, connection: Connection) -> Program[Connection]:
        if self._mode == "async":
            raw = yield call(connection.get_raw_connection)
            return raw.driver_connection
        return connection.connection.driver_connection


_USE_SYNC = "sync code: use postroom.sync.Postroom"


def class_names(value: object) -> list[str]:
    """Returns the names of an object's class and its bases, each with its top-level package."""
    return [f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(value).__mro__]


def _is_of(tx: Tx, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in type(tx).__mro__)


def _why_unusable(adapter: CallerAdapter, connection: Connection) -> str | None:
    try:
        return adapter.why_unusable(connection)
    except Exception as error:
        raise refuse("its connection is closed, or was given back to its pool") from error


class _Handle:
    """A SQLAlchemy object, compared with the classes of the SQLAlchemy modules that are loaded."""

    def __init__(self, tx: Tx) -> None:
        self.handle = (
            tx() if self._is(tx, "orm", "scoped_session") or self._is_async(tx, "async_scoped_session") else tx
        )
        self.is_session = self._is(self.handle, "orm", "Session") or self._is_async(self.handle, "AsyncSession")
        self.mode: Mode | None = None
        if self._is(self.handle, "orm", "Session") or self._is(self.handle, "engine", "Connection"):
            self.mode = "sync"
        elif self._is_async(self.handle, "AsyncSession") or self._is_async(self.handle, "AsyncConnection"):
            self.mode = "async"

    def _is(self, value: object, module: str, name: str) -> bool:
        cls = getattr(sys.modules.get(f"sqlalchemy.{module}"), name, None)
        return cls is not None and isinstance(value, cls)

    def _is_async(self, value: object, name: str) -> bool:
        return self._is(value, "ext.asyncio", name)
