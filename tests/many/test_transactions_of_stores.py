"""A transaction of one store is refused by the verbs of another one, also if their databases have the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import Key, Message, Postroom, StoreConfig, TransactionRefused
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.stores import databases, migrated
from tests.postgres import create_database, with_driver

OF_ANOTHER = "tx is of store 'acme', this call is of store 'globex'"


def _tenants(url: str) -> dict[str, StoreConfig]:
    """Two stores in one database."""
    return {"acme": StoreConfig(url), "globex": StoreConfig(url, prefix="globex_", deploy_schema=True)}


def _elsewhere(url: str) -> dict[str, str]:
    """Two stores whose databases have the same name, on two servers. No server listens at the second address."""
    return {"acme": url, "globex": f"postgresql+asyncpg://postgres@127.0.0.1:1/{url.rpartition('/')[2]}"}


@pytest.fixture
def url() -> str:
    return migrated(with_driver(create_database(), "asyncpg"))


@pytest.mark.parametrize("engine", ["sqlite", "asyncpg", "psycopg"])
async def test_a_transaction_of_another_store(open_room: OpenRoom, engine: str, url: str, tmp_path: Path) -> None:
    if engine == "sqlite":
        url = databases("sqlite", tmp_path, ["acme"])["acme"]
    room = open_room(_tenants(url.replace("asyncpg", engine)))
    router = room.router
    await router.outbox("globex").find()  # makes its tables
    async with router.store("acme").transaction() as tx:
        for verb in (
            router.outbox("globex").enqueue("t", "x", tx=tx),
            router.inbox("globex").cancel([Key("s", "1")], tx=tx),
        ):
            with pytest.raises(TransactionRefused, match=OF_ANOTHER):
                await verb
        with pytest.raises(TransactionRefused, match=OF_ANOTHER):
            await router.store("globex").put(router.outbox("globex").box, [], tx=tx)
        await router.outbox("acme").enqueue("t", "x", tx=tx)
    assert len(await router.outbox("acme").find()) == 1
    assert await router.outbox("globex").find() == []
    async with router.store("globex").transaction() as tx:  # which may be on the same connection
        await router.outbox("globex").enqueue("t", "x", tx=tx)


def test_a_transaction_of_another_store_in_a_sync_room(url: str) -> None:
    with SyncPostroom(stores=_tenants(url.replace("asyncpg", "psycopg"))) as room:
        with room.router.store("acme").transaction() as tx:
            with pytest.raises(TransactionRefused, match=OF_ANOTHER):
                room.router.outbox("globex").enqueue("t", "x", tx=tx)
            room.router.outbox("acme").enqueue("t", "x", tx=tx)
        assert [len(room.router.outbox(key).find()) for key in ("acme", "globex")] == [1, 0]


@pytest.mark.parametrize("catches", [False, True])
async def test_a_transactional_handler_writes_to_another_store(open_room: OpenRoom, url: str, *, catches: bool) -> None:
    room = open_room(_tenants(url))

    @room.inbox(max_attempts=1).handler("t", transactional=True)
    async def handle(message: Message[Any], tx: Any) -> None:
        try:
            await room.router.outbox("globex").enqueue("t", "x", tx=tx)
        except TransactionRefused:
            if not catches:
                raise

    await room.router.inbox("acme").enqueue("t", "x", source="s", message_id="1")
    await room.drain()
    (dead,) = await room.router.inbox("acme").dead_letters()
    assert OF_ANOTHER in str(dead.last_error)
    assert await room.router.outbox("globex").find() == []


async def _asyncpg(url: str, use: Any) -> None:
    import asyncpg

    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        async with connection.transaction():
            await use(connection)
    finally:
        await connection.close()


async def _psycopg(url: str, use: Any) -> None:
    connection = await psycopg.AsyncConnection.connect(url.replace("+asyncpg", ""))
    async with connection, connection.transaction():
        await use(connection)


async def _sqlalchemy(url: str, use: Any) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            await use(connection)
        async with AsyncSession(engine) as session, session.begin():
            await use(session)
    finally:
        await engine.dispose()


@pytest.mark.parametrize("connected", [_asyncpg, _psycopg, _sqlalchemy])
async def test_a_connection_to_the_server_of_another_store(open_room: OpenRoom, url: str, connected: Any) -> None:
    room = open_room(_elsewhere(url))

    async def use(tx: Any) -> None:
        with pytest.raises(TransactionRefused, match=OF_ANOTHER):
            await room.router.outbox("globex").enqueue("t", "x", tx=tx)
        await room.router.outbox("acme").enqueue("t", "x", tx=tx)

    await connected(url, use)
    assert len(await room.router.outbox("acme").find()) > 0


async def test_a_connection_to_an_address_of_no_store(open_room: OpenRoom, url: str) -> None:
    """The address may be another name of the server, or the one of PgBouncer."""
    room = open_room({"globex": _elsewhere(url)["globex"]})

    async def use(tx: Any) -> None:
        await room.router.outbox("globex").enqueue("t", "x", tx=tx)

    await _asyncpg(url, use)
    async with Postroom(url) as alone:
        assert len(await alone.outbox().find()) == 1
