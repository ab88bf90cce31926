"""`tx=`: our write commits with the caller's change, or not at all."""

from __future__ import annotations

import inspect
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

import postroom
from postroom import FeatureMissing, OwnerToken, SchemaMissing, State, TransactionRefused
from postroom import sync as postroom_sync
from postroom._stores.wrapper import innermost

pytestmark = pytest.mark.store("sqlite")

INSERT = "INSERT INTO orders VALUES (1)"


async def settled(value: Any) -> Any:
    """Returns the result of a call of either mode."""
    return await value if inspect.isawaitable(value) else value


@dataclass
class Caller:
    """A handle that users pass as `tx`, and how it begins and ends."""

    tx: Any
    write: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


@asynccontextmanager
async def sqlite3_connection(path: Path) -> AsyncIterator[Caller]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    yield Caller(connection, lambda: connection.execute(INSERT), connection.commit, connection.rollback)
    connection.close()


@asynccontextmanager
async def sqlite3_rows(path: Path) -> AsyncIterator[Caller]:
    """A connection with a row factory and a text factory of its own, in sqlite3's implicit transactions."""
    connection = sqlite3.connect(path)
    connection.row_factory, connection.text_factory = sqlite3.Row, bytes
    connection.execute("INSERT INTO orders VALUES (2)")
    yield Caller(connection, lambda: connection.execute(INSERT), connection.commit, connection.rollback)
    assert connection.text_factory is bytes
    assert connection.row_factory is sqlite3.Row
    connection.close()


@asynccontextmanager
async def aiosqlite_connection(path: Path) -> AsyncIterator[Caller]:
    async with aiosqlite.connect(path) as connection:
        await connection.execute("BEGIN")
        yield Caller(connection, lambda: connection.execute(INSERT), connection.commit, connection.rollback)


@asynccontextmanager
async def sqlalchemy_connection(path: Path) -> AsyncIterator[Caller]:
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        transaction = connection.begin()
        yield Caller(connection, lambda: connection.execute(sa.text(INSERT)), transaction.commit, transaction.rollback)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(path: Path) -> AsyncIterator[Caller]:
    engine = sa.create_engine(f"sqlite:///{path}")
    with orm.Session(engine) as session:
        session.begin()
        yield Caller(session, lambda: session.execute(sa.text(INSERT)), session.commit, session.rollback)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_scoped_session(path: Path) -> AsyncIterator[Caller]:
    engine = sa.create_engine(f"sqlite:///{path}")
    session = orm.scoped_session(orm.sessionmaker(engine))
    session.begin()
    yield Caller(session, lambda: session.execute(sa.text(INSERT)), session.commit, session.rollback)
    session.remove()
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection(path: Path) -> AsyncIterator[Caller]:
    engine = sa_async.create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.connect() as connection:
        transaction = await connection.begin()
        yield Caller(connection, lambda: connection.execute(sa.text(INSERT)), transaction.commit, transaction.rollback)
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(path: Path) -> AsyncIterator[Caller]:
    engine = sa_async.create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with sa_async.AsyncSession(engine) as session:
        await session.begin()
        yield Caller(session, lambda: session.execute(sa.text(INSERT)), session.commit, session.rollback)
    await engine.dispose()


SYNC = [sqlite3_connection, sqlite3_rows, sqlalchemy_connection, sqlalchemy_session, sqlalchemy_scoped_session]
ASYNC = [aiosqlite_connection, sqlalchemy_async_connection, sqlalchemy_async_session]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with postroom_sync.Postroom(f"sqlite:///{path}") as room:
        room.migrate()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.commit()
    connection.close()
    return path


@pytest.fixture(params=SYNC + ASYNC, ids=lambda caller: caller.__name__)
async def caller(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Caller]:
    async with request.param(path) as caller:
        yield caller


@pytest.fixture
async def room(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Any]:
    """A room of the caller's mode."""
    sync = request.node.callspec.params["caller"] in SYNC
    room = postroom_sync.Postroom(f"sqlite:///{path}") if sync else postroom.Postroom(f"sqlite:///{path}")
    yield room
    await settled(room.close())


def orders(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM orders WHERE id = 1").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.req("OBX-003", "C-55", "OBX-SCP-01", "OBX-API-02")
async def test_commits_with_the_caller(caller: Caller, room: Any, path: Path) -> None:
    await settled(caller.write())
    receipt = await settled(room.outbox().enqueue("order.created", {"id": 1}, tx=caller.tx))
    assert receipt.is_new
    await settled(caller.commit())
    assert (await settled(room.outbox().get(receipt.message_id))).payload == {"id": 1}
    assert orders(path) == 1


@pytest.mark.req("OBX-003", "C-55", "OBX-SCP-01")
async def test_rolls_back_with_the_caller(caller: Caller, room: Any, path: Path) -> None:
    await settled(room.outbox().enqueue("order.created", {"id": 1}, tx=caller.tx))
    await settled(caller.write())
    await settled(caller.rollback())
    assert (await settled(room.outbox().counts()))[State.WAITING] == 0
    assert orders(path) == 0


async def test_a_log_record_does_not_claim_that_it_is_stored(
    caller: Caller, room: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = room.outbox()
    with caplog.at_level(logging.INFO, "postroom"):
        for number in range(2):
            await settled(outbox.enqueue("t", number, message_id="1", tx=caller.tx))
        await settled(caller.rollback())
        await settled(outbox.enqueue("t", "x", message_id="1"))
    records = [record.getMessage().partition("store=")[0] for record in caplog.records if record.name == "postroom"]
    assert records == [
        "enqueued in the caller's transaction ",
        "duplicate (duplicate) in the caller's transaction: ",
        "enqueued ",
    ]


@pytest.mark.req("OBX-003", "C-55")
async def test_first_statement_of_the_transaction_may_be_ours(caller: Caller, room: Any) -> None:
    await settled(room.outbox().enqueue("order.created", "x", tx=caller.tx))
    await settled(caller.commit())
    assert (await settled(room.outbox().counts()))[State.WAITING] == 1


@pytest.mark.req("OBX-003")
async def test_is_invisible_to_others_until_the_commit(caller: Caller, room: Any) -> None:
    await settled(room.outbox().enqueue("order.created", "x", tx=caller.tx))
    assert (await settled(room.outbox().counts()))[State.WAITING] == 0
    await settled(caller.commit())
    assert (await settled(room.outbox().counts()))[State.WAITING] == 1


@pytest.mark.req("C-55", "IBX-102")
async def test_every_writing_verb_takes_part(caller: Caller, room: Any) -> None:
    inbox, owner = room.inbox(), OwnerToken.new()
    for name in ("acked", "abandoned", "released", "failed", "marked"):
        await settled(inbox.enqueue("t", name, source="s", message_id=name, tx=caller.tx))
    claimed = await settled(inbox.claim(owner, tx=caller.tx))
    by_id = {message.message_id: message for message in claimed}
    assert len(by_id) == 5
    assert await settled(inbox.ack(owner, [by_id["acked"]], tx=caller.tx)) == [True]
    assert await settled(inbox.abandon(owner, [by_id["abandoned"]], tx=caller.tx)) == [True]
    assert await settled(inbox.release(owner, [by_id["released"]], tx=caller.tx)) == [True]
    assert await settled(inbox.fail(owner, [by_id["failed"]], "no", tx=caller.tx)) == [True]
    assert await settled(inbox.mark_processed("marked", "s", tx=caller.tx))
    assert not await settled(inbox.already_processed("unseen", "s", tx=caller.tx))
    assert len(await settled(inbox.replay(tx=caller.tx))) == 1
    await settled(caller.rollback())
    assert not any((await settled(inbox.counts())).values())


async def test_an_error_of_ours_leaves_the_callers_writes(caller: Caller, room: Any, path: Path) -> None:
    """The verb runs in a savepoint: a failure in its middle takes back its own writes only."""
    await settled(caller.write())
    driver = innermost(room.store)._driver
    statements = dict(driver.engine.statements)
    driver.engine.statements = {name: text for name, text in statements.items() if name != "enqueue_plain"}
    with pytest.raises(KeyError):
        await settled(room.outbox().enqueue("t", "x", tx=caller.tx))
    driver.engine.statements = statements
    await settled(caller.commit())
    assert orders(path) == 1
    assert await settled(room.outbox().find()) == []


@pytest.mark.req("C-55")
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_refuses_a_connection_without_a_transaction(mode: str, path: Path) -> None:
    url = f"sqlite:///{path}"
    if mode == "sync":
        connection = sqlite3.connect(path)
        engine = sa.create_engine(url)
        with postroom_sync.Postroom(url) as room, engine.connect() as bare, orm.Session(engine) as session:
            for tx in (connection, bare, session):
                with pytest.raises(TransactionRefused, match="no open transaction"):
                    room.outbox().enqueue("t", "x", tx=tx)
            assert room.outbox().find() == []
        connection.close()
        engine.dispose()
    else:
        async_engine = sa_async.create_async_engine(f"sqlite+aiosqlite:///{path}")
        async with (
            postroom.Postroom(url) as async_room,
            aiosqlite.connect(path) as aio,
            async_engine.connect() as async_bare,
            sa_async.AsyncSession(async_engine) as async_session,
        ):
            for async_tx in (aio, async_bare, async_session):
                with pytest.raises(TransactionRefused, match="no open transaction"):
                    await async_room.outbox().enqueue("t", "x", tx=async_tx)
            assert await async_room.outbox().find() == []
        await async_engine.dispose()


@pytest.mark.req("C-55")
async def test_refuses_the_wrong_mode(path: Path) -> None:
    url = f"sqlite:///{path}"
    async with (
        sqlite3_connection(path) as plain,
        sqlalchemy_session(path) as session,
        postroom.Postroom(url) as room,
    ):
        for sync_tx in (plain.tx, session.tx):
            with pytest.raises(TransactionRefused, match=r"postroom\.sync\.Postroom"):
                await room.outbox().enqueue("t", "x", tx=sync_tx)
    async with aiosqlite_connection(path) as aio, sqlalchemy_async_session(path) as async_session:
        with postroom_sync.Postroom(url) as sync_room:
            for tx in (aio.tx, async_session.tx):
                with pytest.raises(TransactionRefused, match=r"async code: use postroom\.Postroom"):
                    sync_room.outbox().enqueue("t", "x", tx=tx)


@pytest.mark.req("C-55")
def test_refuses_another_database(path: Path, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    memory = sqlite3.connect(":memory:")
    with postroom_sync.Postroom(f"sqlite:///{path}") as room:
        for connection in (other, memory):
            connection.execute("BEGIN")
            with pytest.raises(TransactionRefused, match="another database"):
                room.outbox().enqueue("t", "x", tx=connection)
            connection.close()
        assert room.outbox().find() == []


def test_accepts_the_same_file_under_another_name(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(path)
    connection = sqlite3.connect(tmp_path / "link.db", isolation_level=None)
    connection.execute("BEGIN")
    with postroom_sync.Postroom(f"sqlite:///{path}") as room:
        room.outbox().enqueue("t", "x", tx=connection)
        connection.commit()
        assert len(room.outbox().find()) == 1
    connection.close()


@pytest.mark.req("C-55")
def test_refuses_what_is_no_connection(path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{path}")
    with postroom_sync.Postroom(f"sqlite:///{path}") as room:
        for tx, what in ((object(), "builtins.object"), ("BEGIN", "builtins.str"), (engine, "SQLAlchemy Engine")):
            with pytest.raises(TransactionRefused, match=what):
                room.outbox().enqueue("t", "x", tx=tx)
    engine.dispose()


@pytest.mark.req("C-40", "C-55")
async def test_a_store_without_transactions_refuses_before_anything_happens() -> None:
    async with postroom.Postroom("memory://") as room:
        with pytest.raises(FeatureMissing, match="cannot join your transaction"):
            await room.outbox().enqueue("t", "x", tx=object())
        assert await room.outbox().find() == []


def test_the_schema_is_checked_in_the_callers_transaction_too(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "empty.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with postroom_sync.Postroom(f"sqlite:///{tmp_path}/empty.db", deploy_schema=True) as room:
        with pytest.raises(SchemaMissing):
            room.outbox().enqueue("t", "x", tx=connection)
        connection.commit()
        assert room.outbox().enqueue("t", "x").is_new
    connection.close()


@pytest.mark.req("OBX-002")
async def test_without_a_transaction_it_commits_its_own(path: Path) -> None:
    async with postroom.Postroom(f"sqlite:///{path}") as room:
        receipt = await room.outbox().enqueue("t", "x")
        with postroom_sync.Postroom(f"sqlite:///{path}") as other:
            assert other.outbox().get(receipt.message_id).payload == "x"


async def test_exactly_once_effects_with_ack_in_the_callers_transaction(path: Path) -> None:
    """The worker's write and the ack commit together. If the claim is stale, the worker rolls back."""
    url = f"sqlite:///{path}"
    with postroom_sync.Postroom(url) as room:
        inbox, owner = room.inbox(), OwnerToken.new()
        inbox.enqueue("t", "x", source="s", message_id="1")
        [message] = inbox.claim(owner)
        inbox.release(owner, [message])
        [again] = inbox.claim(owner)
        connection = sqlite3.connect(path, isolation_level=None)
        for claimed, kept in ((message, [False]), (again, [True])):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(INSERT)
            assert inbox.ack(owner, [claimed], tx=connection) == kept
            connection.execute("COMMIT" if kept == [True] else "ROLLBACK")
        connection.close()
    assert orders(path) == 1
