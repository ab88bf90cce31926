"""asyncpg, for async code: its connections, its notifications and its pool."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

from postroom._kernel.local import PerLoop, UserPool
from postroom._kernel.program import Mode
from postroom._stores.client_imports import import_client
from postroom._stores.sql.network import Checkout, ClientPool, RecordError
from postroom._stores.sql.postgres.listener import OnNotification
from postroom._stores.sql.postgres.settings import MAINTENANCE_SECONDS, PoolSettings
from postroom._stores.sql.transactions import Connection

import_asyncpg = partial(import_client, "asyncpg", needed_by="PostgreSQL from async code", extra="postgres")


class AsyncpgAdapter:
    """Runs statements on asyncpg's connections, and on a pool's proxies of them."""

    mode: Mode = "async"
    connection_classes = ("asyncpg.Connection", "asyncpg.PoolConnectionProxy")

    def why_unusable(self, connection: Connection) -> str | None:
        if connection.is_closed():  # `is_in_transaction` may still be true
            return "its connection is closed"
        if not connection.is_in_transaction():
            return "it has no open transaction: use `async with connection.transaction():` around the change"
        return None

    def is_transactional(self, connection: Connection) -> bool:
        return bool(connection.is_in_transaction())

    def database(self, connection: Connection) -> str | None:
        return getattr(getattr(connection, "_params", None), "database", None)

    def is_closed(self, connection: Connection) -> bool:
        try:
            return bool(connection.is_closed())
        except import_asyncpg().InterfaceError:  # it was given back to its pool
            return False

    async def fetch(self, connection: Connection, text: str, parameters: Sequence[object]) -> Sequence[object]:
        rows: Sequence[object] = await connection.fetch(text, *parameters)
        return rows

    async def execute(self, connection: Connection, text: str, *, may_take_long: bool = False) -> None:
        await connection.execute(text, timeout=MAINTENANCE_SECONDS if may_take_long else None)

    async def subscribe(self, connection: Connection, channel: str, on_notification: OnNotification) -> Subscription:
        return await Subscription(connection, channel, on_notification).open()


class Subscription:
    """See `listener.Subscription`."""

    def __init__(self, connection: Connection, channel: str, on_notification: OnNotification) -> None:
        self._connection, self._channel = connection, channel
        self._on_notification = on_notification
        self._terminated = asyncio.Event()

    async def open(self) -> Subscription:
        self._connection.add_termination_listener(self._terminate)
        await self._connection.add_listener(self._channel, self._notify)
        return self

    def _terminate(self, _connection: Connection) -> None:
        self._terminated.set()

    def _notify(self, _connection: Connection, _pid: int, _channel: str, payload: str) -> None:
        self._on_notification(payload)

    async def receive(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._terminated.wait()
                raise ConnectionError("the server has closed the connection")

    async def close(self) -> None:
        await self._connection.remove_listener(self._channel, self._notify)
        self._connection.remove_termination_listener(self._terminate)


class AsyncpgPool:
    """A pool that Postroom makes, or the user's."""

    adapter = AsyncpgAdapter()
    pool_class = "asyncpg.Pool"
    tx_classes = AsyncpgAdapter.connection_classes

    def __init__(self, settings: PoolSettings, pool: ClientPool = None) -> None:
        self._settings = settings
        self._user_pool = None if pool is None else UserPool(pool)
        self._own_pool: PerLoop[ClientPool] = PerLoop(self._make_pool)

    async def acquire(self) -> Checkout:
        # `await` opens the pool, once.
        pool = await self._own_pool.get() if self._user_pool is None else self._user_pool.get()
        connection = await pool.acquire()
        return Checkout(connection, connection, pool)

    async def release(self, checkout: Checkout, *, broken: bool = False) -> None:
        if broken:
            with suppress(import_asyncpg().InterfaceError):  # a closed connection has left the pool by itself
                checkout.connection.terminate()
        await checkout.pool.release(checkout.connection)

    async def begin(self, checkout: Checkout) -> None:
        # By asyncpg's object and not by a statement: then a handler can open a nested transaction.
        checkout.transaction = checkout.connection.transaction(isolation="read_committed")
        await checkout.transaction.start()
        if self._user_pool is None and self._settings.handler_settings:
            await checkout.connection.execute(self._settings.handler_settings)

    async def commit(self, checkout: Checkout) -> None:
        await checkout.transaction.commit()

    async def rollback(self, checkout: Checkout) -> None:
        await checkout.transaction.rollback()

    def recording(self, checkout: Checkout, record: RecordError) -> AbstractContextManager[None]:
        """asyncpg does not report the errors of prepared statements and of COPY."""
        logger: AbstractContextManager[None] = checkout.connection.query_logger(lambda query: record(query.exception))
        return logger

    def _make_pool(self) -> ClientPool:
        asyncpg = import_asyncpg()

        class OwnConnection(asyncpg.Connection):  # type: ignore[misc, name-defined]
            """Our statements leave nothing in the session to reset. A reset would cost a round trip."""

            def get_reset_query(self) -> str:
                return ""

        options = self._settings.asyncpg_parameters()
        return asyncpg.create_pool(
            self._settings.url, min_size=0, max_size=self._settings.size, connection_class=OwnConnection, **options
        )

    async def close(self) -> None:
        if (pool := self._own_pool.pop()) is None:
            return
        try:
            async with asyncio.timeout(self._settings.response_timeout):
                await pool.close()  # waits for the server
        except TimeoutError:
            pool.terminate()
