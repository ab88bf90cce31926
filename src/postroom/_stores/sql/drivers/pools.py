"""Where a driver's connections come from: a pool of its own, the user's pool, or the user's SQLAlchemy engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from postroom._kernel.local import Borrowed
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.sql.drivers.failures import sqlstate

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Our programs count on seeing, with each statement, what others have committed; a database's default may differ."""
HEARTBEAT = 30.0
"""Seconds of silence after which a listening connection is asked whether it lives."""

Note = Callable[[BaseException | None], None]

LASTING = 24 * 3600.0
"""Seconds for what may take long: to change large tables."""


@dataclass(frozen=True)
class PoolSettings:
    """How a pool of our own is made."""

    url: str = field(repr=False)
    """With the password."""
    size: int = 10
    connect_seconds: float = 10.0
    wait_seconds: float = 3.0
    """For a connection of the pool, before it is asked why."""
    answer_seconds: float = 30.0
    """How long a server may be silent before it is given up."""
    pgbouncer: bool = False
    """Behind PgBouncer in transaction mode a session is not ours: nothing may be prepared, set or listened to."""
    several_hosts: bool = False
    """The URL names several hosts, and does not say which of them it wants: the one that can be written to."""
    server_settings: Mapping[str, str] = field(default_factory=dict)
    for_handlers: str = ""
    """Said at the beginning of a handler's transaction: what suits our statements need not suit theirs."""


@dataclass
class Lease:
    """A connection, for as long as it is used."""

    connection: Any
    """The driver's."""
    handle: Any
    """What a transactional handler gets as `tx`: the same, or a SQLAlchemy connection on it."""
    restore: bool = False
    """Whether it was not in autocommit mode, and must not be when it goes back."""
    extra: bool = False
    """Whether it is none of the pool's, and ends with this use."""
    pool: Any = None
    """Whose it is."""
    counted: set[int] = field(default_factory=set)
    """Where the leases of a pool of our own are counted, by identity."""
    transaction: Any = None


class Pool(Protocol):
    """The methods of an async driver's pool are coroutines."""

    wire: Any

    def acquire(self) -> Any: ...
    def release(self, lease: Lease, *, broken: bool = False) -> Any: ...
    def begin(self, lease: Lease) -> Any: ...
    def commit(self, lease: Lease) -> Any: ...
    def rollback(self, lease: Lease) -> Any: ...
    def close(self) -> Any: ...

    def watched(self, lease: Lease, note: Note) -> AbstractContextManager[None]:
        """For async code: pass the errors of statements on this connection to `note`, as far as the driver can."""


class SqlalchemyPoolVerbs:
    """The user's SQLAlchemy engine. Handlers get its connections, so that they can use the ORM on them."""

    def __init__(self, engine: Any, wire: Any) -> None:
        self._engine = Borrowed(engine, "call engine.dispose(close=False) in the new process first")
        self._below = engine
        self.wire = wire

    def _raw(self, handle: Any) -> Program[Any]:
        """The pool's own record of a connection of SQLAlchemy's."""
        raise NotImplementedError

    @verb
    def acquire(self) -> Program[Lease]:
        handle = yield call(self._engine.get(self._below.pool).connect)
        connection = (yield from self._raw(handle)).driver_connection
        lease = Lease(connection, handle, restore=getattr(connection, "autocommit", True) is False)
        if lease.restore:
            yield call(connection.set_autocommit, True)
        return lease

    @verb
    def release(self, lease: Lease, *, broken: bool = False) -> Program[None]:
        if broken:
            yield call(lease.handle.invalidate)
        elif lease.restore:
            yield call(lease.connection.set_autocommit, False)
        yield call(lease.handle.close)

    @verb
    def begin(self, lease: Lease) -> Program[None]:
        if lease.restore:  # SQLAlchemy begins in its own way
            yield call(lease.connection.set_autocommit, False)
            lease.restore = False
        elif (yield from self._raw(lease.handle)).dbapi_connection.autocommit:
            # The engine is told to commit every statement; what a handler does is one transaction all the same.
            yield call(lease.handle.execution_options, isolation_level="READ COMMITTED")
        lease.transaction = yield call(lease.handle.begin)

    @verb
    def commit(self, lease: Lease) -> Program[None]:
        yield call(lease.transaction.commit)

    @verb
    def rollback(self, lease: Lease) -> Program[None]:
        if lease.transaction.is_active:  # otherwise the handler has ended it, though it should not
            yield call(lease.transaction.rollback)

    @verb
    def close(self) -> Program[None]:
        """The engine is the user's."""
        yield from ()


_NOTE = "postroom_note"
"""The key in `Connection.info` under which the errors of a connection are wanted."""


def _note_error(context: Any) -> None:
    """A listener of SQLAlchemy's event `handle_error`, which occurs for no statement that succeeds."""
    note = None if context.connection is None else context.connection.info.get(_NOTE)
    if note is not None:
        error = context.original_exception
        # On asyncpg this is an error of SQLAlchemy's own, and asyncpg's, which says more, is its cause.
        note(error.__cause__ if sqlstate(error.__cause__) else error)


class SqlalchemyPool(SqlalchemyPoolVerbs, Async):
    """An AsyncEngine."""

    tx_classes = ("sqlalchemy.AsyncConnection", "sqlalchemy.AsyncSession")

    def __init__(self, engine: Any, wire: Any) -> None:
        super().__init__(engine, wire)
        from sqlalchemy import event

        if not event.contains(engine.sync_engine, "handle_error", _note_error):
            event.listen(engine.sync_engine, "handle_error", _note_error)

    @contextmanager
    def watched(self, lease: Lease, note: Note) -> Iterator[None]:
        info = lease.handle.info
        info[_NOTE] = note
        try:
            yield
        finally:
            info.pop(_NOTE, None)

    def _raw(self, handle: Any) -> Program[Any]:
        return (yield call(handle.get_raw_connection))


class SyncSqlalchemyPool(SqlalchemyPoolVerbs, Sync):
    """An Engine."""

    def _raw(self, handle: Any) -> Program[Any]:
        yield from ()
        return handle.connection
