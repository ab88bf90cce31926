"""Everything that a user of PostgreSQL may pass as `tx`, and how each of them begins, nests and ends."""

from __future__ import annotations

import atexit
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

import postroom
from postroom import sync as postroom_sync
from tests.postgres import clean_database, shared_database, with_driver
from tests.support import settled

INSERT = "INSERT INTO shop.orders (name) VALUES ('tea')"


@functools.cache
def shop() -> psycopg.Connection:
    """A connection of the test's own, beside the application's table, which it makes."""
    connection = psycopg.connect(shared_database(), autocommit=True)
    atexit.register(connection.close)
    connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS shop.orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)"
    )
    return connection


def clean_shop() -> str:
    """A database without messages and without orders; returns its URL."""
    shop().execute("DELETE FROM shop.orders")
    return clean_database()


def orders() -> list[str]:
    """The names of the orders that were committed."""
    return [name for (name,) in shop().execute("SELECT name FROM shop.orders ORDER BY id").fetchall()]


def idle_in_transaction() -> int:
    """How many connections to the database wait in a transaction."""
    [(count,)] = shop().execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )
    return int(count)


def open_room(url: str, driver: str, **options: Any) -> Any:
    """A room on one of the drivers: asyncpg, psycopg, psycopg-sync."""
    if driver == "psycopg-sync":
        return postroom_sync.Postroom(with_driver(url, "psycopg"), **options)
    return postroom.Postroom(with_driver(url, driver), **options)


@dataclass
class Caller:
    """A handle that users pass as `tx`. Its functions are of its own mode: settle what they return."""

    tx: Any
    run: Callable[[str], Any]
    begin: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    nest: Callable[[], Any]
    """Begins a nested transaction with the library's own means; returns a function that rolls it back."""
    close: Callable[[], Any]

    async def fail(self) -> None:
        """Let the server refuse a statement, after which PostgreSQL does nothing more in this transaction."""
        with pytest.raises(Exception, match="division by zero"):
            await settled(self.run("SELECT 1 / 0"))

    async def undo(self, work: Callable[[], Any]) -> None:
        """Do this in a nested transaction, and roll back only that."""
        roll_back = await settled(self.nest())
        await settled(work())
        await settled(roll_back())


# -- asyncpg -------------------------------------------------------------------------------------------------------


def _asyncpg_caller(connection: Any, close: Callable[[], Any]) -> Caller:
    open_ones: list[Any] = []

    async def begin() -> None:
        open_ones.append(connection.transaction())
        await open_ones[-1].start()

    async def nest() -> Callable[[], Any]:
        await begin()
        return lambda: open_ones.pop().rollback()

    return Caller(
        connection,
        run=connection.execute,
        begin=begin,
        commit=lambda: open_ones.pop().commit(),
        rollback=lambda: open_ones.pop().rollback(),
        nest=nest,
        close=close,
    )


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    yield _asyncpg_caller(connection, connection.close)
    await connection.close()


@asynccontextmanager
async def asyncpg_pooled(url: str) -> AsyncIterator[Caller]:
    """A pool's proxy, which is closed by being given back."""
    async with asyncpg.create_pool(url, min_size=0, max_size=1) as pool:
        connection = await pool.acquire()
        yield _asyncpg_caller(connection, lambda: pool.release(connection))
        await pool.release(connection)


# -- psycopg -------------------------------------------------------------------------------------------------------


def _psycopg_caller(connection: Any, *, implicit: bool) -> Caller:
    """In psycopg's own blocks, or, if implicit, in the transaction that its first statement begins."""
    leave, blocks = ("__aexit__" if isinstance(connection, psycopg.AsyncConnection) else "__exit__"), []

    def begin() -> Any:
        if implicit:
            return None
        return nest()

    def nest() -> Any:
        block = connection.transaction()
        blocks.append(block)
        entered = block.__aenter__() if leave == "__aexit__" else block.__enter__()

        async def enter() -> Callable[[], Any]:
            await settled(entered)
            return roll_back

        return enter()

    def roll_back() -> Any:
        return getattr(blocks.pop(), leave)(psycopg.Rollback, psycopg.Rollback(), None)

    return Caller(
        connection,
        run=connection.execute,
        begin=begin,
        commit=connection.commit if implicit else lambda: getattr(blocks.pop(), leave)(None, None, None),
        rollback=connection.rollback if implicit else roll_back,
        nest=nest,
        close=connection.close,
    )


@asynccontextmanager
async def psycopg_block(url: str) -> AsyncIterator[Caller]:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    yield _psycopg_caller(connection, implicit=False)
    await connection.close()


@asynccontextmanager
async def psycopg_implicit(url: str) -> AsyncIterator[Caller]:
    """With rows and cursors of the user's own liking."""
    async with await psycopg.AsyncConnection.connect(
        url, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.AsyncClientCursor
    ) as connection:
        yield _psycopg_caller(connection, implicit=True)
        assert connection.row_factory is psycopg.rows.dict_row


@asynccontextmanager
async def psycopg_sync_block(url: str) -> AsyncIterator[Caller]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield _psycopg_caller(connection, implicit=False)


@asynccontextmanager
async def psycopg_sync_implicit(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        yield _psycopg_caller(connection, implicit=True)


# -- SQLAlchemy ----------------------------------------------------------------------------------------------------


def _sqlalchemy_caller(handle: Any) -> Caller:
    """A connection or a session, of either mode. Its first statement may be ours: nothing is sent by `begin`."""

    async def nest() -> Callable[[], Any]:
        nested = await settled(handle.begin_nested())
        rollback: Callable[[], Any] = nested.rollback
        return rollback

    return Caller(
        handle,
        run=lambda text: handle.execute(sa.text(text)),
        begin=handle.begin,
        commit=handle.commit,
        rollback=handle.rollback,
        nest=nest,
        close=handle.close,
    )


def _async_engine(url: str, driver: str) -> sa_async.AsyncEngine:
    return sa_async.create_async_engine(with_driver(url, driver), poolclass=sa.NullPool)


def sync_engine(url: str, **options: Any) -> sa.Engine:
    return sa.create_engine(with_driver(url, "psycopg"), poolclass=sa.NullPool, **options)


@asynccontextmanager
async def _async_connection(driver: str, url: str) -> AsyncIterator[Caller]:
    async with _async_engine(url, driver).connect() as connection:
        yield _sqlalchemy_caller(connection)


@asynccontextmanager
async def _async_session(driver: str, url: str) -> AsyncIterator[Caller]:
    async with sa_async.AsyncSession(_async_engine(url, driver)) as session:
        yield _sqlalchemy_caller(session)


@asynccontextmanager
async def _async_scoped_session(driver: str, url: str) -> AsyncIterator[Caller]:
    maker = sa_async.async_sessionmaker(_async_engine(url, driver))
    session = sa_async.async_scoped_session(maker, scopefunc=lambda: "this one")
    yield _sqlalchemy_caller(session)
    await session.remove()


@asynccontextmanager
async def sync_connection(url: str) -> AsyncIterator[Caller]:
    with sync_engine(url).connect() as connection:
        yield _sqlalchemy_caller(connection)


@asynccontextmanager
async def sync_session(url: str) -> AsyncIterator[Caller]:
    with orm.Session(sync_engine(url)) as session:
        yield _sqlalchemy_caller(session)


@asynccontextmanager
async def sync_scoped_session(url: str) -> AsyncIterator[Caller]:
    session = orm.scoped_session(orm.sessionmaker(sync_engine(url)))
    yield _sqlalchemy_caller(session)
    session.remove()


class Base(orm.DeclarativeBase):
    """SQLAlchemy's register of this application."""


class Order(Base):
    """The application's own table, for the ORM."""

    __tablename__ = "orders"
    __table_args__ = {"schema": "shop"}  # noqa: RUF012 - SQLAlchemy's own way
    id: orm.Mapped[int] = orm.mapped_column(sa.Identity(always=True), primary_key=True)
    name: orm.Mapped[str]


# -- Django --------------------------------------------------------------------------------------------------------


@functools.cache
def _set_up_django(url: str) -> None:
    import django
    from django.conf import settings

    given = psycopg.conninfo.conninfo_to_dict(url)
    place = {"NAME": given["dbname"], "HOST": given["host"], "PORT": given["port"], "USER": given["user"]}
    settings.configure(
        DATABASES={
            "default": {"ENGINE": "django.db.backends.postgresql", **place},
            "file": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        TIME_ZONE="Asia/Kathmandu",  # its connections speak of time in their own way
        USE_TZ=True,
    )
    django.setup()


@asynccontextmanager
async def django_connection(url: str) -> AsyncIterator[Caller]:
    _set_up_django(url)
    from django.db import connection, transaction

    blocks: list[Any] = []

    def begin() -> None:
        blocks.append(transaction.atomic())
        blocks[-1].__enter__()

    def commit() -> None:
        blocks.pop().__exit__(None, None, None)

    def rollback() -> None:
        transaction.set_rollback(True)
        commit()

    def nest() -> Callable[[], Any]:
        begin()
        return rollback

    def run(text: str) -> Any:
        with connection.cursor() as cursor:
            return cursor.execute(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # one test serves both modes, so a loop is running
        yield Caller(connection, run, begin, commit, rollback, nest, connection.close)
        while blocks:
            rollback()
        connection.close()


# -- all of them ---------------------------------------------------------------------------------------------------

Kind = Callable[[str], AbstractAsyncContextManager[Caller]]


def _sqlalchemy_kinds(driver: str) -> dict[str, Kind]:
    return {
        "AsyncConnection": functools.partial(_async_connection, driver),
        "AsyncSession": functools.partial(_async_session, driver),
        "async_scoped_session": functools.partial(_async_scoped_session, driver),
    }


KINDS: dict[str, dict[str, Kind]] = {
    "asyncpg": {"connection": asyncpg_connection, "pooled": asyncpg_pooled, **_sqlalchemy_kinds("asyncpg")},
    "psycopg": {"block": psycopg_block, "implicit": psycopg_implicit, **_sqlalchemy_kinds("psycopg")},
    "psycopg-sync": {
        "block": psycopg_sync_block,
        "implicit": psycopg_sync_implicit,
        "Connection": sync_connection,
        "Session": sync_session,
        "scoped_session": sync_scoped_session,
        "django": django_connection,
    },
}
"""By the driver below. An implicit one begins by itself: it never has no transaction."""


THIN = {"pooled", "scoped_session", "async_scoped_session"}
"""What stands for another kind that is here too."""


def every_kind(*, thin: bool = True, implicit: bool = True, sync: bool = True) -> pytest.MarkDecorator:
    """Runs a test on all of them, or leaves out some: those that begin by themselves, or those for sync code."""
    chosen = [
        (driver, kind)
        for driver, kinds in KINDS.items()
        for kind in kinds
        if (thin or kind not in THIN) and (implicit or kind != "implicit") and (sync or driver != "psycopg-sync")
    ]
    return pytest.mark.parametrize(("driver", "kind"), chosen)


# -- what must be refused --------------------------------------------------------------------------------------------


@asynccontextmanager
async def sqlite_handles(*, sync: bool) -> AsyncIterator[list[Any]]:
    """Of another kind of database, with transactions open."""
    if sync:
        connection = sqlite3.connect(":memory:")
        connection.execute("BEGIN")
        with orm.Session(sa.create_engine("sqlite://")) as session, session.begin():
            yield [connection, session]
        connection.close()
        return
    engine = sa_async.create_async_engine("sqlite+aiosqlite://")
    async with aiosqlite.connect(":memory:") as aio, sa_async.AsyncSession(engine) as async_session:
        await aio.execute("BEGIN")
        await async_session.begin()
        yield [aio, async_session]
    await engine.dispose()


@asynccontextmanager
async def autocommit_handles(url: str, driver: str) -> AsyncIterator[list[Any]]:
    """A connection and a session of SQLAlchemy with the isolation level AUTOCOMMIT."""
    if driver == "psycopg-sync":
        engine = sync_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, orm.Session(engine) as session:
            yield [connection, session]
        return
    async_engine = _async_engine(url, driver).execution_options(isolation_level="AUTOCOMMIT")
    async with async_engine.connect() as async_connection, sa_async.AsyncSession(async_engine) as async_session:
        yield [async_connection, async_session]


def _psycopg2_connection() -> Any:
    """A stand-in: what matters is where its class comes from."""
    return type("connection", (), {"__module__": "psycopg2.extensions"})()


@asynccontextmanager
async def what_is_no_connection(url: str, driver: str) -> AsyncIterator[dict[Any, str]]:
    """What users may pass by mistake, and the error text."""
    common = {object(): "builtins.object", "BEGIN": "builtins.str", _psycopg2_connection(): "use psycopg 3"}
    if driver == "psycopg-sync":
        _set_up_django(url)
        from django.db import transaction

        engine = sync_engine(url)
        with engine.connect() as handle, psycopg.connect(url) as connection, connection.transaction() as block:
            yield common | {
                engine: "SQLAlchemy Engine: pass a connection or a session",
                handle.begin(): "SQLAlchemy RootTransaction: pass a connection or a session",
                block: "psycopg.Transaction; this store takes psycopg.Connection",
                connection.cursor(): "psycopg.Cursor; this store takes psycopg.Connection",
                transaction.atomic(): r"Django's Atomic: pass django\.db\.connection",
            }
        return
    async_engine = _async_engine(url, driver)
    async with (
        async_engine.connect() as async_handle,
        asyncpg.create_pool(url, min_size=0) as pool,
        pool.acquire() as asyncpg_connection,
        await psycopg.AsyncConnection.connect(url) as async_connection,
        async_connection.transaction() as async_block,
    ):
        yield common | {
            async_engine: "SQLAlchemy AsyncEngine: pass a connection or a session",
            async_handle.begin(): "SQLAlchemy AsyncTransaction: pass a connection or a session",
            pool: r"asyncpg.Pool; this store takes asyncpg\.Connection or psycopg\.AsyncConnection",
            asyncpg_connection.transaction(): "asyncpg.Transaction; this store takes asyncpg.Connection",
            async_block: "psycopg.AsyncTransaction; this store takes",
            async_connection.cursor(): "psycopg.AsyncCursor; this store takes",
        }
