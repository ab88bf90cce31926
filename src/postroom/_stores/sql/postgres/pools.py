"""The pools of psycopg: one that Postroom makes, or the user's.

psycopg's pools connect in the background. They do not raise the error that prevents a connection, but retry until the
checkout times out. So Postroom's pool opens some connections beside it, which raise the error at once and are closed
after use:

* the first one of all;
* one for each checkout that times out although the pool is not used up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cached_property, partial

from postroom._kernel.local import PerProcess, UserPool
from postroom._kernel.program import Program, call, verb
from postroom._kernel.texts import escape
from postroom._stores.client_imports import import_client
from postroom._stores.sql.network import Adapter, Checkout, ClientPool
from postroom._stores.sql.postgres.psycopg_wait import ResponseTimeout
from postroom._stores.sql.postgres.settings import BEGIN, PoolSettings
from postroom._stores.sql.transactions import Connection

_log = logging.getLogger("postroom")

POOL_NAME = "postroom"

import_psycopg = partial(import_client, needed_by="PostgreSQL from this code", extra="psycopg")


class OwnPool:
    """A pool that Postroom makes, in the process and the event loop that it belongs to."""

    def __init__(self, pool: ClientPool) -> None:
        self.pool = pool
        self.in_use: set[int] = set()
        """The checkouts, by identity, including connections beside the pool."""

    def count(self, checkout: Checkout) -> Checkout:
        self.in_use.add(id(checkout))
        checkout.in_use = self.in_use
        return checkout


class PsycopgPoolVerbs:
    """The verbs of both modes."""

    adapter: Adapter
    pool_class: str
    """The class of a pool that a user may pass, by package and class name. Postroom's pools are of this class too."""
    _per: Callable[[Callable[[], OwnPool]], PerProcess[OwnPool]]
    """What a pool belongs to: the process, or the event loop."""

    def __init__(self, settings: PoolSettings, pool: ClientPool = None) -> None:
        """`pool`: the user's; without it, one is made."""
        self._settings = settings
        self._user_pool = None if pool is None else UserPool(pool)
        self._own_pool: PerProcess[OwnPool] = self._per(lambda: OwnPool(self._make_pool()))

    @verb
    def acquire(self) -> Program[Checkout]:
        if self._user_pool is not None:
            pool = self._user_pool.get()
            return (yield from self._in_autocommit(Checkout((yield call(pool.getconn)), None, pool)))
        own, is_first = self._own_pool.enter()
        if is_first:
            try:
                return (yield from self._beside(own))
            except BaseException:
                self._own_pool.pop()  # the next checkout is a first one again
                raise
        yield call(own.pool.open)  # does nothing if it is open
        try:
            connection = yield call(own.pool.getconn)
        except import_psycopg("psycopg_pool").PoolTimeout:
            if len(own.in_use) >= self._settings.size:
                raise
            return (yield from self._beside(own))
        return own.count((yield from self._in_autocommit(Checkout(connection, None, own.pool))))

    def _in_autocommit(self, checkout: Checkout) -> Program[Checkout]:
        connection = checkout.handle = checkout.connection
        checkout.restore_autocommit_off = not connection.autocommit
        if checkout.restore_autocommit_off:
            yield call(connection.set_autocommit, True)
        return checkout

    def _beside(self, own: OwnPool) -> Program[Checkout]:
        """Returns a connection beside the pool, or raises the error that prevents one."""
        # Counted before it connects: many tasks that wait for the pool do not open as many connections.
        checkout = own.count(Checkout(None, None))
        try:
            connect = call(self._connection_class.connect, self._settings.url, **self._parameters())
            checkout.connection = checkout.handle = yield connect
        except BaseException:
            checkout.in_use.discard(id(checkout))
            raise
        return checkout

    @verb
    def release(self, checkout: Checkout, *, broken: bool = False) -> Program[None]:
        checkout.in_use.discard(id(checkout))
        if broken or checkout.pool is None:
            yield call(checkout.connection.close)
        elif checkout.restore_autocommit_off:
            yield call(checkout.connection.set_autocommit, False)
        if checkout.pool is None:
            return
        yield call(checkout.pool.putconn, checkout.connection)
        if broken and self._user_pool is None and not checkout.connection.has_timed_out:
            # Where one connection is lost, the idle ones may be too. A timeout is no sign of that: the statement may
            # have waited for a lock. And if the server does not respond, each check would take as long again.
            yield call(checkout.pool.check)

    @verb
    def begin(self, checkout: Checkout) -> Program[None]:
        settings = self._settings.handler_settings if self._user_pool is None else ""
        yield call(self.adapter.execute, checkout.connection, f"{BEGIN}; {settings}" if settings else BEGIN)

    @verb
    def commit(self, checkout: Checkout) -> Program[None]:
        yield call(self.adapter.execute, checkout.connection, "COMMIT")

    @verb
    def rollback(self, checkout: Checkout) -> Program[None]:
        yield call(self.adapter.execute, checkout.connection, "ROLLBACK")

    @verb
    def close(self) -> Program[None]:
        own = self._own_pool.pop()
        if own is not None:
            yield call(own.pool.close)

    @cached_property
    def _connection_class(self) -> type[Connection]:
        psycopg = import_psycopg("psycopg")
        plain = getattr(psycopg, self.adapter.connection_classes[0].partition(".")[2])
        return ResponseTimeout.below(plain, psycopg.OperationalError, self._settings.response_timeout)

    def _parameters(self) -> dict[str, object]:
        prepare = {"prepare_threshold": None} if self._settings.pgbouncer else {}
        return {"autocommit": True, **self._settings.libpq_parameters(), **prepare}

    def _make_pool(self) -> ClientPool:
        logging.getLogger("psycopg.pool").addFilter(_log_as_our_own)  # it is added once, however often this is called
        return self._own_pool_class()(
            self._settings.url,
            connection_class=self._connection_class,
            kwargs=self._parameters(),
            min_size=0,
            max_size=self._settings.size,
            open=False,
            timeout=self._settings.checkout_timeout,
            name=POOL_NAME,
        )

    def _own_pool_class(self) -> type[ClientPool]:
        found: type[ClientPool] = getattr(import_psycopg("psycopg_pool"), self.pool_class.partition(".")[2])
        return found


def with_cancellable_workers(pool_class: type[ClientPool]) -> type[ClientPool]:
    """Returns a class of async pools whose background workers end when they are cancelled.

    While psycopg's worker opens a connection, it takes its cancellation for an error of the server and goes on. Then
    `asyncio.run` would wait for it for ever.
    """

    class Pool(pool_class):  # type: ignore[misc]
        @classmethod
        async def worker(cls, q: asyncio.Queue[object]) -> None:
            await super().worker(_UntilCancelled(q))

    return Pool


class _UntilCancelled:
    """The queue of a background worker. It ends a worker that was cancelled."""

    def __init__(self, queue: asyncio.Queue[object]) -> None:
        self._queue = queue

    async def get(self) -> object:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._queue.get()


def _log_as_our_own(record: logging.LogRecord) -> bool:
    """A filter for the log of psycopg's pools: repeats warnings about Postroom's pools as information in its log.

    They are no warnings: the verb that fails raises the error, and the pool recovers. The user's pools keep theirs.
    """
    if record.levelno < logging.WARNING:
        return True
    text = record.getMessage()
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    is_ours = isinstance(about, ResponseTimeout) or repr(POOL_NAME) in text
    if is_ours:
        _log.info("the pool of connections: %s", escape(text))
    return not is_ours
