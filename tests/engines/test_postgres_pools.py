"""Rooms on connections of the user's: they go back as they came, and the pool stays the user's."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import ArgumentTypeError, ArgumentValueError, Message, NewMessage, OwnerToken, Postroom, State
from postroom import sync as postroom_sync
from postroom._stores.sql.statements import Text
from postroom._stores.wrapper import innermost
from tests.engines.postgres_callers import clean_shop, idle_in_transaction
from tests.engines.postgres_pools import SIZE, SYNC_POOLS, THEIRS
from tests.postgres import shared_database, with_driver
from tests.runtime.support import put, soon
from tests.support import settled

POOLS = {**THEIRS, **SYNC_POOLS}


@pytest.fixture
def url() -> str:
    return clean_shop()


@pytest.fixture(params=POOLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def pool(name: str, url: str) -> AsyncIterator[Any]:
    async with POOLS[name](url) as pool:
        yield pool


@pytest.fixture
async def room(name: str, pool: Any, url: str) -> AsyncIterator[Any]:
    """The URL only says that it is PostgreSQL: all connections are the pool's."""
    room: Any = (postroom_sync.Postroom if name in SYNC_POOLS else Postroom)("postgresql://user@nowhere/", pool=pool)
    yield room
    await settled(room.close())


async def autocommit_of_idle_connections(pool: Any) -> set[bool]:
    """Of all that the pool may have: each is taken, looked at, and given back."""
    taken: list[Any] = []
    modes: set[bool] = set()
    for _ in range(SIZE):
        if isinstance(pool, sa.Engine) or hasattr(pool, "sync_engine"):
            taken.append(await settled(pool.connect()))
            raw = taken[-1].connection if isinstance(pool, sa.Engine) else await taken[-1].get_raw_connection()
            modes.add(raw.dbapi_connection.autocommit)
        else:
            taken.append(await settled(pool.getconn() if hasattr(pool, "getconn") else pool.acquire()))
            modes.add(getattr(taken[-1], "autocommit", True))
    for connection in taken:
        is_plain = hasattr(pool, "putconn") or isinstance(pool, asyncpg.Pool)
        give_back = getattr(pool, "putconn", None) or getattr(pool, "release", None)
        await settled(give_back(connection) if is_plain and give_back else connection.close())
    return modes


async def test_verbs_work_and_connections_go_back_as_they_came(
    name: str, pool: Any, room: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    before = await autocommit_of_idle_connections(pool)
    inbox, owner = room.inbox(order="fifo"), OwnerToken.new()
    many = [
        NewMessage("t", "x", source="s", message_id=str(n), group=f"g{n % 3}", headers={"n": "1"}) for n in range(9)
    ]
    assert all(receipt.is_new for receipt in await settled(inbox.enqueue_many(many)))
    again = await settled(inbox.enqueue("t", "x", source="s", message_id="1", group="g1"))
    assert not again.is_new
    claimed = await settled(inbox.claim(owner))
    assert claimed
    assert all(await settled(inbox.ack(owner, claimed[:1])))
    assert all(await settled(inbox.fail(owner, claimed[1:], "no")))
    assert await settled(inbox.mark_processed("8", "s"))
    assert sum((await settled(inbox.counts())).values()) == 9
    assert await autocommit_of_idle_connections(pool) == before == {not _is_implicit(name)}
    assert idle_in_transaction() == 0
    # Pools complain of connections that come back in a transaction.
    assert [record.message for record in caplog.records if record.name != "postroom"] == []


def _is_implicit(name: str) -> bool:
    """Whether the user's own code finds these connections in transactions that begin by themselves."""
    return name.endswith("implicit") or ("Engine" in name and not name.endswith("autocommit"))


async def test_an_error_leaves_the_connection_as_it_came(name: str, pool: Any, room: Any) -> None:
    before = await autocommit_of_idle_connections(pool)
    engine = innermost(room.store)._driver.engine
    statements = engine.statements
    engine.statements = {**statements, "count_done": Text("SELECT 1 / 0")}  # not the first of the transaction
    with pytest.raises(Exception, match="division by zero"):
        await settled(room.inbox().counts())
    engine.statements = statements
    assert not any((await settled(room.inbox().counts())).values())
    assert await autocommit_of_idle_connections(pool) == before
    assert idle_in_transaction() == 0


async def test_close_leaves_the_pool_open(name: str, pool: Any, room: Any) -> None:
    await settled(room.outbox().enqueue("t", "x"))
    await settled(room.close())
    assert len(await autocommit_of_idle_connections(pool)) == 1


@pytest.mark.parametrize("name", THEIRS)
async def test_handlers_give_their_connections_back_as_they_came(name: str, pool: Any, room: Postroom) -> None:
    inbox = room.inbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        if message.message_id == "2":
            raise ValueError("no")

    before = await autocommit_of_idle_connections(pool)
    await put(inbox, 1, 2, 3)
    await soon(room.drain())
    assert await autocommit_of_idle_connections(pool) == before
    assert idle_in_transaction() == 0
    assert (await inbox.counts())[State.DONE] == 2


@pytest.mark.parametrize("name", THEIRS)
async def test_more_tasks_than_connections(name: str, pool: Any, room: Postroom) -> None:
    await asyncio.gather(*(room.outbox(f"box {n % 10}").enqueue("t", "x") for n in range(50)))
    found = await asyncio.gather(*(room.outbox(f"box {n}").counts() for n in range(10)))
    assert sum(counts[State.WAITING] for counts in found) == 50


@pytest.mark.parametrize("name", THEIRS)
async def test_a_pool_for_async_code_is_not_for_sync_code(name: str, pool: Any, url: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"sync code takes one of: psycopg_pool\.ConnectionPool, "):
        postroom_sync.Postroom(url, pool=pool)


@pytest.mark.parametrize("name", SYNC_POOLS)
async def test_a_pool_for_sync_code_is_not_for_async_code(name: str, pool: Any, url: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"async code takes one of: asyncpg\.Pool, "):
        Postroom(url, pool=pool)


@pytest.mark.parametrize(
    "wrong", [object(), "postgresql://", 5, lambda: None], ids=["object", "str", "int", "function"]
)
def test_what_is_no_pool(wrong: Any) -> None:
    for kind in (Postroom, postroom_sync.Postroom):
        with pytest.raises(ArgumentTypeError, match=r"pool is a .*; a?sync code takes one of"):
            kind("postgresql://user@nowhere/", pool=wrong)


def test_an_engine_on_something_else() -> None:
    with pytest.raises(ArgumentValueError, match="on sqlite, not on PostgreSQL"):
        postroom_sync.Postroom("postgresql://user@nowhere/", pool=sa.create_engine("sqlite://"))
    with pytest.raises(ArgumentValueError, match="on sqlite, not on PostgreSQL"):
        Postroom("postgresql://user@nowhere/", pool=create_async_engine("sqlite+aiosqlite://"))


def test_an_engine_on_a_driver_that_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("psycopg2", "psycopg2.extras", "psycopg2.extensions"):  # stand-ins: nothing connects
        module: Any = ModuleType(name)
        module.paramstyle, module.__version__ = "pyformat", "2.9.9"
        monkeypatch.setitem(sys.modules, name, module)
    engine = sa.create_engine("postgresql+psycopg2://user@nowhere/")
    with pytest.raises(ArgumentValueError, match=r"uses psycopg2: make it with postgresql\+psycopg://"):
        postroom_sync.Postroom("postgresql://user@nowhere/", pool=engine)


class TestSubclasses:
    """What is a pool of the driver's by inheritance is one as well."""

    async def test_a_pool_that_keeps_no_connections(self, url: str) -> None:
        async with (
            psycopg_pool.AsyncNullConnectionPool(url, open=False) as pool,
            Postroom(url, pool=pool) as room,
        ):
            assert (await room.outbox().enqueue("t", "x")).is_new
        with (
            psycopg_pool.NullConnectionPool(url, open=False) as sync_pool,
            postroom_sync.Postroom(url, pool=sync_pool) as sync_room,
        ):
            assert len(sync_room.outbox().find()) == 1

    def test_an_engine_with_options(self) -> None:
        engine = sa.create_engine(with_driver(shared_database(), "psycopg"))
        with postroom_sync.Postroom(shared_database(), pool=engine.execution_options(logging_token="room")) as room:
            assert room.outbox("options").find() == []
        engine.dispose()

    async def test_a_pool_of_a_class_of_the_users(self, url: str) -> None:
        class Pool(asyncpg.Pool):  # type: ignore[misc]
            """asyncpg's own way of making one is a function."""

        async with Pool(
            url,
            min_size=0,
            max_size=3,
            max_queries=100,
            max_inactive_connection_lifetime=0.0,
            connection_class=asyncpg.Connection,
            record_class=asyncpg.Record,
            setup=None,
            init=None,
            reset=None,
            loop=None,
        ) as pool:
            room = Postroom(url, pool=pool)
            assert (await room.outbox().enqueue("t", "x")).is_new
            await room.close()


@pytest.mark.parametrize("size", [1, 2])
async def test_a_pool_that_is_too_small_is_refused(size: int) -> None:
    """A room would wait for ever: one connection listens, one settles, a handler has one."""
    pool = psycopg_pool.AsyncConnectionPool(shared_database(), min_size=0, max_size=size, open=False)
    with pytest.raises(ArgumentValueError, match="needs 3 or more"):
        Postroom("postgresql://localhost/shop", pool=pool)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:se/cret@host/shop",
        "postgresql://user:se#cret@host/shop",
        "postgresql+psycopg://user:se@cret@host/shop",
        "postgresql://user:secret@host:54x2/shop",
    ],
)
def test_a_url_that_cannot_be_read_says_nothing_of_its_password(url: str) -> None:
    with pytest.raises(ArgumentValueError, match="percent-encoded") as refused:
        Postroom(url)
    assert "cret" not in str(refused.value)


async def test_closing_a_running_room_stops_it(caplog: pytest.LogCaptureFixture) -> None:
    room = Postroom(shared_database())

    @room.inbox("closing").handler("topic")
    async def handle(_message: Message[Any]) -> None: ...

    await room.start()
    await room.close()
    assert not room.is_running
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
