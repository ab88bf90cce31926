"""psycopg 3, for async and for sync code: how a statement is run on its connections, and where they come from."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from postroom._kernel.local import Borrowed, PerLoop, PerProcess
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.texts import escape
from postroom._stores.sql.drivers.pools import BEGIN, HEARTBEAT, LASTING, Lease, Note, PoolSettings
from postroom.errors import ExtraMissing

_log = logging.getLogger("postroom")


POOL_NAME = "postroom"


class PsycopgWireVerbs:
    """Runs statements on a psycopg connection, whatever its row and cursor factories are."""

    name: str
    connection_class: str
    _cursor_class: str
    _with = "with"

    def is_mine(self, connection: Any) -> bool:
        return any(
            base.__module__.partition(".")[0] == "psycopg" and base.__name__ == self.connection_class
            for base in type(connection).__mro__
        )

    def trouble(self, connection: Any) -> str | None:
        """Why this connection cannot carry a write, if so."""
        status = connection.info.transaction_status.name
        if status == "IDLE" and connection.autocommit:
            return f"it has no open transaction: use `{self._with} connection.transaction():` around the change"
        if status in {"UNKNOWN", "ACTIVE"}:
            return "its connection is closed, or busy with another statement"
        return None

    def database(self, connection: Any) -> str | None:
        """What its database is called."""
        return str(connection.info.dbname)

    def is_closed(self, connection: Any) -> bool:
        """Whether its connection was lost or closed."""
        return bool(connection.closed)

    def begun(self, connection: Any) -> bool:
        return not connection.autocommit or connection.info.transaction_status.name != "IDLE"

    @verb
    def fetch(self, connection: Any, text: str, parameters: Sequence[Any]) -> Program[Sequence[Any]]:
        cursor = self._cursor(connection)
        yield call(cursor.execute, text, parameters)
        rows: Sequence[Any] = [] if cursor.description is None else (yield call(cursor.fetchall))
        return rows

    @verb
    def execute(self, connection: Any, text: str, *, lasting: bool = False) -> Program[None]:
        """Statements without parameters or rows. `lasting`: they may take their time."""
        with Impatient.made_patient(connection) if lasting else nullcontext():
            # Several in one visit are only understood as text.
            yield call(self._cursor(connection, binary=False).execute, text)

    def _cursor(self, connection: Any, *, binary: bool = True) -> Any:
        psycopg = import_psycopg()
        cursor = getattr(psycopg, self._cursor_class)(connection, row_factory=psycopg.rows.tuple_row)
        cursor.format = psycopg.pq.Format.BINARY if binary else psycopg.pq.Format.TEXT
        return cursor


class PsycopgWire(PsycopgWireVerbs, Async):
    """For async code."""

    name = "psycopg.AsyncConnection"
    connection_class = "AsyncConnection"
    _cursor_class = "AsyncRawCursor"
    _with = "async with"

    @contextmanager
    def watched(self, connection: Any, note: Note) -> Iterator[None]:
        """Pass the errors of statements to `note`. All statements go through `wait`, whatever cursor runs them."""
        wait = connection.wait

        async def noting(*args: Any, **options: Any) -> Any:
            try:
                return await wait(*args, **options)
            except Exception as error:
                note(error)
                raise

        connection.wait = noting
        try:
            yield
        finally:
            del connection.wait

    async def listen(
        self, connection: Any, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call `heard` for every notification, and `lost` if the connection ends; answers how to stop."""
        sql = import_psycopg().sql
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        hearing = asyncio.create_task(self._hear(connection, heard, lost))

        async def stop() -> None:
            hearing.cancel()
            await asyncio.wait([hearing])
            await connection.execute("UNLISTEN *")

        return stop

    async def _hear(self, connection: Any, heard: Callable[[str], None], lost: Callable[[], None]) -> None:
        try:
            while True:
                async for notification in connection.notifies(timeout=HEARTBEAT):
                    heard(notification.payload)
                # A connection that says nothing may be dead: it is asked now and then.
                async with asyncio.timeout(HEARTBEAT):
                    await connection.execute("SELECT 1")
        except Exception:  # noqa: BLE001 - whatever it is, there is nothing to hear any more
            _log.info("the listening connection has ended")
        finally:
            lost()


class SyncPsycopgWire(PsycopgWireVerbs, Sync):
    """For sync code."""

    name = "psycopg.Connection"
    connection_class = "Connection"
    _cursor_class = "RawCursor"


class Impatient:
    """A connection of a pool of our own: it gives up a server that takes what is sent, and says nothing.

    Everything that psycopg waits for goes through `wait`, in both colours, as a generator that is woken several times a
    second: whatever was heard, or nothing.
    """

    seconds: float
    gave_up = False

    @classmethod
    @contextmanager
    def made_patient(cls, connection: Any) -> Iterator[None]:
        """For what may take long."""
        if isinstance(connection, cls):
            connection.seconds = LASTING
        try:
            yield
        finally:
            if isinstance(connection, cls):
                del connection.seconds

    def wait(self, waiting: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        if options.get("timeout") is None:  # otherwise it has a limit already: notifications are waited for
            waiting = self._limited(waiting)
        return super().wait(waiting, *args, **options)  # type: ignore[misc]

    def _limited(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        last = time.monotonic()
        try:
            wanted = next(waiting)
            while True:
                heard = yield wanted
                if heard:
                    last = time.monotonic()
                elif time.monotonic() > last + self.seconds:
                    raise self._give_up()
                wanted = waiting.send(heard)
        except StopIteration as stop:
            return stop.value

    def _give_up(self) -> BaseException:
        """What was asked may have happened all the same, as with any connection that is lost."""
        self.gave_up = True
        pgconn: Any = self.pgconn  # type: ignore[attr-defined]
        pgconn.finish()
        handled = sys.exception()
        if isinstance(handled, asyncio.CancelledError | KeyboardInterrupt):
            return handled  # its caller has gone: psycopg waits only for the end of what was cancelled
        return import_psycopg().OperationalError(f"the server has said nothing for {self.seconds:g} seconds")


def _tell_as_our_own(record: logging.LogRecord) -> bool:
    """A filter for the log of psycopg's pools: what happens to ours is no warning. The verbs that meet it say what is
    wrong, and the pool goes on by itself. Our logger tells it to whoever asks. Pools of the user are left alone."""
    if record.levelno < logging.WARNING:
        return True
    text = record.getMessage()
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    is_ours = isinstance(about, Impatient) or repr(POOL_NAME) in text
    if is_ours:
        _log.info("the pool of connections: %s", escape(text))
    return not is_ours


class _Opened:
    """A pool of our own, in the process and the event loop that it belongs to."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.in_use: set[int] = set()
        """The leases that are out."""

    def count(self, lease: Lease) -> Lease:
        self.in_use.add(id(lease))
        lease.counted = self.in_use
        return lease


class PsycopgPoolVerbs:
    """Connections of psycopg: of a pool of our own, or of the user's."""

    wire: Any

    _local: type[PerProcess[Any]]
    """Where a pool belongs to."""

    def __init__(self, settings: PoolSettings, pool: Any = None) -> None:
        self._settings = settings
        self._theirs = None if pool is None else Borrowed(pool)
        self._opened: PerProcess[_Opened] = self._local(lambda: _Opened(self._make()))

    @verb
    def acquire(self) -> Program[Lease]:
        if self._theirs is not None:
            pool = self._theirs.get()
            return (yield from self._lease(pool, (yield call(pool.getconn))))
        opened, is_first = self._opened.enter()
        if is_first:
            # The first connection is made without the pool, which would not say what is wrong, and would take its time.
            try:
                return (yield from self._extra(opened))
            except BaseException:
                self._opened.pop()  # the next one begins again
                raise
        yield call(opened.pool.open)  # does nothing where it is open
        try:
            connection = yield call(opened.pool.getconn)
        except import_pool().PoolTimeout:
            if len(opened.in_use) >= self._settings.size:
                raise
            # The pool could not connect, and does not say why; or it is still at it, which takes longer than it has
            # patience; or it waits longer than the server was away.
            return (yield from self._extra(opened))
        lease = yield from self._lease(opened.pool, connection)
        return opened.count(lease)

    def _lease(self, pool: Any, connection: Any) -> Program[Lease]:
        lease = Lease(connection, connection, restore=not connection.autocommit, pool=pool)
        if lease.restore:
            yield call(connection.set_autocommit, True)
        return lease

    @verb
    def release(self, lease: Lease, *, broken: bool = False) -> Program[None]:
        lease.counted.discard(id(lease))
        if broken or lease.extra:
            yield call(lease.connection.close)
        elif lease.restore:
            yield call(lease.connection.set_autocommit, False)
        if not lease.extra:
            yield call(lease.pool.putconn, lease.connection)
        if broken and self._theirs is None and not lease.extra and not lease.connection.gave_up:
            # Where one is lost, the idle ones may be too. Not so where one was given up: it may have waited for a lock,
            # and where the server says nothing, to ask each of the others would take as long again.
            yield call(lease.pool.check)

    @verb
    def begin(self, lease: Lease) -> Program[None]:
        mine = self._theirs is None and self._settings.for_handlers
        yield call(self.wire.execute, lease.connection, f"{BEGIN}; {mine}" if mine else BEGIN)

    @verb
    def commit(self, lease: Lease) -> Program[None]:
        yield call(self.wire.execute, lease.connection, "COMMIT")

    @verb
    def rollback(self, lease: Lease) -> Program[None]:
        yield call(self.wire.execute, lease.connection, "ROLLBACK")

    def _extra(self, opened: _Opened) -> Program[Lease]:
        """A connection beside the pool, or the error that keeps us from having one."""
        # Counted from now on, so that a crowd that waits does not become a crowd of connections.
        lease = opened.count(Lease(None, None, extra=True))
        try:
            connection = yield call(self._connection_class.connect, self._settings.url, **self._parameters())
        except BaseException:
            lease.counted.discard(id(lease))
            raise
        lease.connection = lease.handle = connection
        return lease

    def _parameters(self) -> dict[str, Any]:
        settings = self._settings
        parameters: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": int(settings.connect_seconds),
            # A server that has gone without a word: it is given up after half a minute, not after the kernel's quarter
            # of an hour.
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": int(settings.answer_seconds * 1000),
        }
        if settings.server_settings:
            escaped = {name: value.replace(" ", r"\ ") for name, value in settings.server_settings.items()}
            parameters["options"] = " ".join(f"-c {name}={value}" for name, value in escaped.items())
        if settings.pgbouncer:
            parameters["prepare_threshold"] = None
        if settings.several_hosts:
            parameters["target_session_attrs"] = "read-write"
        return parameters

    @functools.cached_property
    def _connection_class(self) -> Any:
        theirs = getattr(import_psycopg(), self.wire.connection_class)
        details = {"seconds": self._settings.answer_seconds, "__module__": theirs.__module__}
        return type(theirs.__name__, (Impatient, theirs), details)

    def _make(self) -> Any:
        settings = self._settings
        logging.getLogger("psycopg.pool").addFilter(_tell_as_our_own)  # once, however often
        return self._pool_class()(
            settings.url,
            connection_class=self._connection_class,
            kwargs=self._parameters(),
            min_size=0,
            max_size=settings.size,
            open=False,
            timeout=settings.wait_seconds,
            name=POOL_NAME,
        )

    def _pool_class(self) -> Any:
        """psycopg's."""
        raise NotImplementedError

    @verb
    def close(self) -> Program[None]:
        opened = self._opened.pop()
        if opened is not None:
            yield call(opened.pool.close)


class _UntilCancelled:
    """The queue of a worker of psycopg's pool. While a connection is made, the worker takes its cancellation for an
    error of the server and goes on; then `asyncio.run` would wait for it for ever."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def get(self) -> Any:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._queue.get()


class PsycopgPool(PsycopgPoolVerbs, Async):
    """For async code."""

    wire = PsycopgWire()
    tx_classes = ("psycopg.AsyncConnection",)
    _local = PerLoop

    def watched(self, lease: Lease, note: Note) -> AbstractContextManager[None]:
        return self.wire.watched(lease.connection, note)

    def _pool_class(self) -> Any:
        class Pool(import_pool().AsyncConnectionPool):  # type: ignore[misc]
            @classmethod
            async def worker(cls, q: Any) -> None:
                await super().worker(_UntilCancelled(q))

        return Pool


class SyncPsycopgPool(PsycopgPoolVerbs, Sync):
    """For sync code."""

    wire = SyncPsycopgWire()
    _local = PerProcess

    def _pool_class(self) -> Any:
        return import_pool().ConnectionPool


def import_psycopg() -> Any:
    try:
        import psycopg
        import psycopg.rows
        import psycopg.sql
    except ImportError as error:
        raise ExtraMissing("PostgreSQL from this code needs psycopg: pip install 'postroom[psycopg]'") from error
    return psycopg


def import_pool() -> Any:
    import_psycopg()
    try:
        import psycopg_pool
    except ImportError as error:
        raise ExtraMissing("PostgreSQL from this code needs psycopg_pool: pip install 'postroom[psycopg]'") from error
    return psycopg_pool
