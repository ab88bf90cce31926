"""A verb inside a transactional handler takes part in its transaction, or says that it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom import SEPARATE, Message, Postroom, State, TransactionRefused
from postroom import sync as postroom_sync
from tests.faces.test_tx_argument import CALLS, KEY
from tests.postgres import clean_database, create_database, with_driver
from tests.runtime.support import put, soon, state_of

MISSING = r"tx is missing inside a transactional handler.* pass tx=SEPARATE|holds the only write lock of .* pass tx=tx"


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(store: str, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/room.db" if store == "aiosqlite" else with_driver(clean_database(), store)


@pytest.fixture
async def room(url: str) -> AsyncIterator[Postroom]:
    room = Postroom(url)
    await room.migrate()
    yield room
    await room.close()


async def test_every_verb_that_writes_is_refused(room: Postroom) -> None:
    inbox, other = room.inbox(), room.inbox("other")
    refused: list[str] = []

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        for verb, given in CALLS.items():
            with pytest.raises(TransactionRefused, match=MISSING):
                await getattr(other, verb)(*given, **KEY.get(verb, {}))
            refused.append(verb)

    await put(inbox, 1)
    await soon(room.drain())
    assert (refused, await state_of(inbox)) == (list(CALLS), State.DONE)
    assert await other.find() == []


async def test_a_handler_that_forgets_it_fails(room: Postroom) -> None:
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        await outbox.enqueue("mail", {})

    await put(inbox, 1)
    await soon(room.drain())
    message = await inbox.get("1")
    assert (message.state, message.attempt, await outbox.find()) == (State.WAITING, 1, [])
    assert "pass tx=tx" in str(message.last_error)


async def test_verbs_of_sync_code_are_refused_too(room: Postroom, url: str) -> None:
    plain = url.replace("+asyncpg", "").replace("+psycopg", "")
    inbox, outbox = room.inbox(), postroom_sync.Postroom(plain).outbox()

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        with pytest.raises(TransactionRefused, match=MISSING):
            outbox.enqueue("mail", {})
        with pytest.raises(TransactionRefused, match=MISSING):
            await asyncio.to_thread(outbox.enqueue, "mail", {})

    await put(inbox, 1)
    await soon(room.drain())
    assert (await state_of(inbox), outbox.find()) == (State.DONE, [])


async def test_separate_commits_by_itself_where_writers_do_not_exclude_each_other(room: Postroom) -> None:
    inbox, log = room.inbox(max_attempts=1), room.outbox("log")

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        await log.enqueue("tried", {}, message_id="1", tx=SEPARATE)
        raise LookupError("no")

    await put(inbox, 1)
    await soon(room.drain())
    told = str((await inbox.get("1")).last_error)
    if room.features.concurrent:
        assert (told, await state_of(log)) == ("LookupError: no", State.WAITING)
    else:
        assert (await log.find(), "holds the only write lock of" in told) == ([], True)


async def test_a_task_that_outlives_its_handler_is_free(room: Postroom) -> None:
    inbox, outbox = room.inbox(), room.outbox()
    over = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def later() -> None:
        await over.wait()
        await outbox.enqueue("mail", {}, message_id="1")
        assert await outbox.purge("done") == 0

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        tasks.append(asyncio.create_task(later()))

    await put(inbox, 1)
    await soon(room.drain())
    over.set()
    await soon(tasks[0])
    assert await state_of(outbox) == State.WAITING


async def test_another_store_is_none_of_its_business(room: Postroom, store: str) -> None:
    inbox, elsewhere = room.inbox(), Postroom("memory://").outbox()

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        await elsewhere.enqueue("mail", {}, message_id="1")

    await put(inbox, 1)
    await soon(room.drain())
    assert (await state_of(inbox), await state_of(elsewhere)) == (State.DONE, State.WAITING)


async def test_only_the_same_room_is_the_same_database_where_pools_are_given() -> None:
    """Nothing is known of the database of a pool."""
    async with (
        asyncpg.create_pool(clean_database(), min_size=0, max_size=3) as one,
        asyncpg.create_pool(create_database(), min_size=0, max_size=3) as two,
    ):
        here, there = Postroom("postgresql://", pool=one), Postroom("postgresql://", pool=two)
        await there.migrate()
        inbox = here.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(_message: Message[str], tx: Any) -> None:
            with pytest.raises(TransactionRefused, match=MISSING):
                await here.outbox().enqueue("mail", {}, message_id="1")
            await there.outbox().enqueue("mail", {}, message_id="1")

        await put(inbox, 1)
        await soon(here.drain())
        assert (await state_of(inbox), await state_of(there.outbox())) == (State.DONE, State.WAITING)
        await here.close()
        await there.close()
