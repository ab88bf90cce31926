"""The annotation of `tx` in a room with many stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from postroom import ArgumentTypeError, FeatureMissing, Message, Postroom, StoreConfig
from tests.many.conftest import OpenRoom
from tests.many.stores import Handled, databases, migrated
from tests.postgres import create_database, with_driver


@pytest.fixture
def url() -> str:
    return migrated(with_driver(create_database(), "asyncpg"))


@pytest.fixture
async def pool(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url)
    yield engine
    await engine.dispose()


def _mixed(url: str, pool: object, folder: Path) -> dict[str, Any]:
    return {"acme": StoreConfig(url, pool=pool), **databases("sqlite", folder, ["bolt"])}


async def test_a_session_on_the_transaction_of_the_store(
    open_room: OpenRoom, url: str, pool: AsyncEngine, tmp_path: Path, handled: Handled
) -> None:
    room = open_room(_mixed(url, pool, tmp_path))
    names: list[str] = []

    @room.inbox().handler("t", transactional=True)
    async def handle(message: Message[Any], tx: AsyncSession) -> None:
        names.append(str((await tx.execute(text("SELECT current_database()"))).scalar_one()))
        await room.router.outbox(message.store).enqueue("t", "x", tx=tx)
        handled.note(message)

    for key in ("acme", "bolt"):
        await room.router.inbox(key).enqueue("t", "x", source="s", message_id="1")
    with pytest.raises(FeatureMissing, match=r"AsyncSession, and this room passes a aiosqlite.Connection"):
        await room.drain()
    assert names == [url.rpartition("/")[2]]
    assert len(await room.router.outbox("acme").find()) == 1
    await room.router.inbox("acme").enqueue("t", "x", source="s", message_id="2")
    async with room:
        await handled.until(("acme", "2"))
        (left,) = await room.router.inbox("bolt").find()
    assert (left.state.name, left.attempt) == ("WAITING", 0)


async def test_a_session_of_another_store_is_refused(open_room: OpenRoom, url: str, pool: AsyncEngine) -> None:
    acme = StoreConfig(url, pool=pool)
    room = open_room({"acme": acme, "globex": StoreConfig(url, pool=pool, prefix="globex_", deploy_schema=True)})

    @room.inbox(max_attempts=1).handler("t", transactional=True)
    async def handle(message: Message[Any], tx: AsyncSession) -> None:
        await room.router.outbox("globex").enqueue("t", "x", tx=tx)

    await room.router.inbox("acme").enqueue("t", "x", source="s", message_id="1")
    await room.drain()
    (dead,) = await room.router.inbox("acme").dead_letters()
    assert "tx is of store 'acme', this call is of store 'globex'" in str(dead.last_error)


def test_an_annotation_that_no_store_fits() -> None:
    room = Postroom(stores={"acme": "sqlite:///x.db"})

    async def number(message: Message[Any], tx: int) -> None: ...
    async def connection(message: Message[Any], tx: aiosqlite.Connection) -> None: ...

    register = room.inbox().handler("t", transactional=True)
    with pytest.raises(ArgumentTypeError, match=r"int, and this room passes a aiosqlite.Connection or asyncpg"):
        register(number)
    register(connection)
