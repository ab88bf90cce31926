"""psycopg 3, for async and sync code: its connections, its notifications and its pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

from postroom._kernel.local import PerLoop, PerProcess
from postroom._kernel.program import Async, Mode, Program, Sync, call, verb
from postroom._stores.sql.network import Checkout, ClientPool, RecordError
from postroom._stores.sql.postgres.listener import OnNotification
from postroom._stores.sql.postgres.pools import PsycopgPoolVerbs, import_psycopg, with_cancellable_workers
from postroom._stores.sql.postgres.psycopg_wait import ResponseTimeout, recording_errors
from postroom._stores.sql.transactions import Connection


class PsycopgAdapterVerbs:
    """Runs statements on psycopg's connections, whatever their row and cursor factories are."""

    _cursor_class: str
    _with = "with"

    def why_unusable(self, connection: Connection) -> str | None:
        status = connection.info.transaction_status.name
        if status == "IDLE" and connection.autocommit:
            return f"it has no open transaction: use `{self._with} connection.transaction():` around the change"
        if status in {"UNKNOWN", "ACTIVE"}:
            return "its connection is closed, or busy with another statement"
        return None

    def is_transactional(self, connection: Connection) -> bool:
        return not connection.autocommit or connection.info.transaction_status.name != "IDLE"

    def database(self, connection: Connection) -> str | None:
        return str(connection.info.dbname)

    def is_closed(self, connection: Connection) -> bool:
        return bool(connection.closed)

    @verb
    def fetch(self, connection: Connection, text: str, parameters: Sequence[object]) -> Program[Sequence[object]]:
        cursor = self._make_cursor(connection)
        yield call(cursor.execute, text, parameters, binary=True)
        rows: Sequence[object] = [] if cursor.description is None else (yield call(cursor.fetchall))
        return rows

    @verb
    def execute(self, connection: Connection, text: str, *, may_take_long: bool = False) -> Program[None]:
        with ResponseTimeout.extended(connection) if may_take_long else nullcontext():
            # Not binary, since that protocol does not take several statements at once.
            yield call(self._make_cursor(connection).execute, text, binary=False)

    @cached_property
    def _make_cursor(self) -> Callable[[Connection], Any]:
        psycopg = import_psycopg("psycopg")
        return partial(getattr(psycopg, self._cursor_class), row_factory=psycopg.rows.tuple_row)


class PsycopgAdapter(PsycopgAdapterVerbs, Async):
    """For async code."""

    mode: Mode = "async"
    connection_classes = ("psycopg.AsyncConnection",)
    _cursor_class = "AsyncRawCursor"
    _with = "async with"

    async def subscribe(self, connection: Connection, channel: str, on_notification: OnNotification) -> Subscription:
        sql = import_psycopg("psycopg.sql")
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return Subscription(connection, on_notification)


class Subscription:
    """See `listener.Subscription`."""

    def __init__(self, connection: Connection, on_notification: OnNotification) -> None:
        self._connection = connection
        self._on_notification = on_notification

    async def receive(self, seconds: float) -> None:
        async for notification in self._connection.notifies(timeout=seconds):
            self._on_notification(notification.payload)

    async def close(self) -> None:
        await self._connection.execute("UNLISTEN *")


class SyncPsycopgAdapter(PsycopgAdapterVerbs, Sync):
    """For sync code."""

    mode: Mode = "sync"
    connection_classes = ("psycopg.Connection",)
    _cursor_class = "RawCursor"


class PsycopgPool(PsycopgPoolVerbs, Async):
    """For async code."""

    adapter = PsycopgAdapter()
    pool_class = "psycopg_pool.AsyncConnectionPool"
    tx_classes = PsycopgAdapter.connection_classes
    _per = PerLoop

    def _own_pool_class(self) -> type[ClientPool]:
        return with_cancellable_workers(super()._own_pool_class())

    def recording(self, checkout: Checkout, record: RecordError) -> AbstractContextManager[None]:
        return recording_errors(checkout.connection, record)


class SyncPsycopgPool(PsycopgPoolVerbs, Sync):
    """For sync code."""

    adapter = SyncPsycopgAdapter()
    pool_class = "psycopg_pool.ConnectionPool"
    _per = PerProcess
