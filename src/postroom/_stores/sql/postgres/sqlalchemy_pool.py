"""The user's SQLAlchemy engine as a pool. Handlers get its connections, so that they can use the ORM on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from postroom._kernel.local import UserPool
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.sql.network import Adapter, Checkout, ClientPool, RecordError
from postroom._stores.sql.postgres.errors import sqlstate
from postroom._stores.sql.transactions import Connection
from postroom.spi import Tx

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext


class PooledConnection(Protocol):
    """The record that SQLAlchemy's pool has of a connection."""

    driver_connection: Connection
    dbapi_connection: Connection


class SqlalchemyPoolVerbs:
    """The verbs of both modes."""

    def __init__(self, engine: ClientPool, adapter: Adapter) -> None:
        self._user_engine = UserPool(engine, "call engine.dispose(close=False) in the new process first")
        self._engine = engine
        self.adapter = adapter

    def _raw(self, handle: Tx) -> Program[PooledConnection]:
        raise NotImplementedError

    @verb
    def acquire(self) -> Program[Checkout]:
        handle = yield call(self._user_engine.get(self._engine.pool).connect)
        connection = (yield from self._raw(handle)).driver_connection
        is_off = getattr(connection, "autocommit", True) is False
        checkout = Checkout(connection, handle, restore_autocommit_off=is_off)
        if is_off:
            yield call(connection.set_autocommit, True)
        return checkout

    @verb
    def release(self, checkout: Checkout, *, broken: bool = False) -> Program[None]:
        if broken:
            yield call(checkout.handle.invalidate)
        elif checkout.restore_autocommit_off:
            yield call(checkout.connection.set_autocommit, False)
        yield call(checkout.handle.close)

    @verb
    def begin(self, checkout: Checkout) -> Program[None]:
        if checkout.restore_autocommit_off:  # SQLAlchemy begins in its own way
            yield call(checkout.connection.set_autocommit, False)
            checkout.restore_autocommit_off = False
        elif (yield from self._raw(checkout.handle)).dbapi_connection.autocommit:
            # The engine has the isolation level AUTOCOMMIT. A handler's transaction is a transaction all the same.
            yield call(checkout.handle.execution_options, isolation_level="READ COMMITTED")
        checkout.transaction = yield call(checkout.handle.begin)

    @verb
    def commit(self, checkout: Checkout) -> Program[None]:
        yield call(checkout.transaction.commit)

    @verb
    def rollback(self, checkout: Checkout) -> Program[None]:
        if checkout.transaction.is_active:  # otherwise the handler has ended it, though it should not
            yield call(checkout.transaction.rollback)

    @verb
    def close(self) -> Program[None]:
        """Does nothing: the engine is the user's."""
        yield from ()


_RECORD = "postroom_record_error"
"""The key in `Connection.info` of the function that records the errors of a connection."""


def _record_error(context: ExceptionContext) -> None:
    """Handles SQLAlchemy's event `handle_error`, which occurs for failed statements only."""
    record = None if context.connection is None else context.connection.info.get(_RECORD)
    if record is not None:
        error = context.original_exception
        # On asyncpg this is an error of SQLAlchemy, with asyncpg's error, which has more attributes, as its cause.
        record(error.__cause__ if sqlstate(error.__cause__) else error)


class SqlalchemyPool(SqlalchemyPoolVerbs, Async):
    """An AsyncEngine."""

    tx_classes = ("sqlalchemy.AsyncConnection", "sqlalchemy.AsyncSession")

    def __init__(self, engine: ClientPool, adapter: Adapter) -> None:
        super().__init__(engine, adapter)
        from sqlalchemy import event

        if not event.contains(engine.sync_engine, "handle_error", _record_error):
            event.listen(engine.sync_engine, "handle_error", _record_error)

    @contextmanager
    def recording(self, checkout: Checkout, record: RecordError) -> Iterator[None]:
        info = checkout.handle.info
        info[_RECORD] = record
        try:
            yield
        finally:
            info.pop(_RECORD, None)

    def _raw(self, handle: Tx) -> Program[PooledConnection]:
        pooled: PooledConnection = yield call(handle.get_raw_connection)
        return pooled


class SyncSqlalchemyPool(SqlalchemyPoolVerbs, Sync):
    """An Engine."""

    def _raw(self, handle: Tx) -> Program[PooledConnection]:
        yield from ()
        pooled: PooledConnection = handle.connection
        return pooled
