"""asyncpg: how a statement is run on its connections, and where they come from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from postroom._kernel.local import Borrowed, PerLoop
from postroom._stores.sql.drivers.pools import HEARTBEAT, LASTING, Lease, Note, PoolSettings
from postroom.errors import ExtraMissing

_log = logging.getLogger("postroom")


class AsyncpgWire:
    """Runs statements on an asyncpg connection, a pool's proxy included."""

    name = "asyncpg.Connection"

    def is_mine(self, connection: Any) -> bool:
        return any(base.__module__.partition(".")[0] == "asyncpg" for base in type(connection).__mro__)

    def trouble(self, connection: Any) -> str | None:
        """Why this connection cannot carry a write, if so."""
        if connection.is_closed():  # it would still speak of the transaction that it had
            return "its connection is closed"
        if not connection.is_in_transaction():
            return "it has no open transaction: use `async with connection.transaction():` around the change"
        return None

    def database(self, connection: Any) -> str | None:
        """What its database is called, where that can be told."""
        return getattr(getattr(connection, "_params", None), "database", None)

    def is_closed(self, connection: Any) -> bool:
        """Whether its connection was lost or closed. One that was given back to its pool does not say."""
        try:
            return bool(connection.is_closed())
        except import_asyncpg().InterfaceError:
            return False

    def begun(self, connection: Any) -> bool:
        return bool(connection.is_in_transaction())

    async def fetch(self, connection: Any, text: str, parameters: Sequence[Any]) -> Sequence[Any]:
        rows: Sequence[Any] = await connection.fetch(text, *parameters)
        return rows

    async def execute(self, connection: Any, text: str, *, lasting: bool = False) -> None:
        """Statements without parameters or rows. `lasting`: they may take their time."""
        await connection.execute(text, timeout=LASTING if lasting else None)

    @contextmanager
    def watched(self, connection: Any, note: Note) -> Iterator[None]:
        """Pass the errors of statements to `note`. asyncpg does not report those of prepared statements and COPY."""

        def logged(query: Any) -> None:
            note(query.exception)

        connection.add_query_logger(logged)
        try:
            yield
        finally:
            connection.remove_query_logger(logged)

    async def listen(
        self, connection: Any, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call `heard` for every notification, and `lost` if the connection ends; answers how to stop."""

        def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            heard(payload)

        await connection.add_listener(channel, hear)
        watching = asyncio.create_task(self._watch(connection, lost))

        async def stop() -> None:
            watching.cancel()
            await asyncio.wait([watching])
            await connection.remove_listener(channel, hear)

        return stop

    async def _watch(self, connection: Any, lost: Callable[[], None]) -> None:
        """A connection that says nothing may be dead: it is asked now and then."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _connection: ended.set())
        try:
            while not ended.is_set():
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        await ended.wait()
                except TimeoutError:
                    await connection.fetchval("SELECT 1", timeout=HEARTBEAT)
        except Exception:  # noqa: BLE001 - whatever it is, there is nothing to hear any more
            _log.info("the listening connection has ended")
        finally:
            lost()


class AsyncpgPool:
    """Connections of asyncpg: of a pool of our own, or of the user's."""

    wire = AsyncpgWire()
    tx_classes = ("asyncpg.Connection", "asyncpg.PoolConnectionProxy")

    def __init__(self, settings: PoolSettings, pool: Any = None) -> None:
        self._settings = settings
        self._theirs = None if pool is None else Borrowed(pool)
        self._pools: PerLoop[Any] = PerLoop(self._make)

    async def acquire(self) -> Lease:
        if self._theirs is None:
            pool = self._pools.get()
            await pool  # opens it once, whoever comes first
        else:
            pool = self._theirs.get()
        connection = await pool.acquire()
        return Lease(connection, connection, pool=pool)

    async def release(self, lease: Lease, *, broken: bool = False) -> None:
        if broken:
            with suppress(import_asyncpg().InterfaceError):  # one that has ended has left the pool by itself
                lease.connection.terminate()
        await lease.pool.release(lease.connection)

    async def begin(self, lease: Lease) -> None:
        # Not by hand: then a handler could not nest its own.
        lease.transaction = lease.connection.transaction(isolation="read_committed")
        await lease.transaction.start()
        if self._theirs is None and self._settings.for_handlers:
            await lease.connection.execute(self._settings.for_handlers)

    async def commit(self, lease: Lease) -> None:
        await lease.transaction.commit()

    async def rollback(self, lease: Lease) -> None:
        await lease.transaction.rollback()

    def watched(self, lease: Lease, note: Note) -> AbstractContextManager[None]:
        return self.wire.watched(lease.connection, note)

    def _make(self) -> Any:
        asyncpg = import_asyncpg()

        class Connection(asyncpg.Connection):  # type: ignore[misc, name-defined]
            """Our statements leave nothing behind that would have to be reset, at the cost of another visit."""

            def get_reset_query(self) -> str:
                return ""

        settings = self._settings
        options: dict[str, Any] = {"statement_cache_size": 0} if settings.pgbouncer else {}
        if settings.several_hosts:
            options["target_session_attrs"] = "read-write"
        return asyncpg.create_pool(
            settings.url,
            min_size=0,
            max_size=settings.size,
            connection_class=Connection,
            server_settings=settings.server_settings,
            timeout=settings.connect_seconds,
            command_timeout=settings.answer_seconds,
            **options,
        )

    async def close(self) -> None:
        pool = self._pools.pop()
        if pool is not None:
            try:
                # It says goodbye to the server, and waits for the answer.
                async with asyncio.timeout(self._settings.answer_seconds):
                    await pool.close()
            except TimeoutError:
                pool.terminate()


def import_asyncpg() -> Any:
    try:
        import asyncpg
    except ImportError as error:
        raise ExtraMissing("PostgreSQL from async code needs asyncpg: pip install 'postroom[postgres]'") from error
    return asyncpg
