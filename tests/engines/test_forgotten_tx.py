"""A verb inside a transactional handler takes part in its transaction, or says that it does not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom import SEPARATE, Message, Postroom, State, TransactionRefused
from postroom import sync as postroom_sync
from tests.boxes.test_tx_argument import CALLS, KEY
from tests.engines.postgres_pools import THEIRS
from tests.postgres import clean_database, create_database, with_driver
from tests.runtime.support import put, soon, state_of
from tests.support import settled

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
    assert (refused, await other.find()) == (list(CALLS), [])


@pytest.mark.parametrize("batch", [None, 5])
async def test_a_handler_that_catches_the_error_has_not_succeeded(room: Postroom, batch: int | None) -> None:
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True, batch=batch)
    async def handle(_given: Any, tx: Any) -> None:
        await outbox.enqueue("mail", {}, tx=tx)
        with suppress(TransactionRefused):
            await outbox.enqueue("mail", {})

    await put(inbox, 1, 2)
    with pytest.raises(ExceptionGroup) as raised:
        await soon(room.drain(raise_errors=True))
    assert [type(error) for error in raised.value.exceptions] == [TransactionRefused] * 2
    for message in await inbox.find():
        assert (message.state, message.attempt, await outbox.find()) == (State.WAITING, 1, [])
        assert str(message.last_error).startswith("a write was refused, and the handler caught the error: Transaction")
        assert re.search(MISSING, str(message.last_error))


async def test_a_transaction_that_the_store_refuses_is_not_success_either(room: Postroom, store: str) -> None:
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        with suppress(TransactionRefused):
            await outbox.enqueue("mail", {}, tx=object())

    await put(inbox, 1)
    await soon(room.drain())
    message = await inbox.get("1")
    assert (message.state, message.attempt, await outbox.find()) == (State.WAITING, 1, [])
    assert "this tx cannot carry the write" in str(message.last_error)


async def test_none_is_no_reason_to_leave_it_out(room: Postroom) -> None:
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        await outbox.enqueue("mail", {}, tx=None)

    await put(inbox, 1)
    await soon(room.drain())
    error = str((await inbox.get("1")).last_error)
    assert "pass tx=tx" in error
    assert "leave out" not in error


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
    assert outbox.find() == []


async def test_separate_commits_by_itself_where_writers_do_not_exclude_each_other(room: Postroom) -> None:
    inbox, log = room.inbox(max_attempts=1), room.outbox("log")

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        await log.enqueue("tried", {}, message_id="1", tx=SEPARATE)
        raise LookupError("no")

    await put(inbox, 1)
    await soon(room.drain())
    error = str((await inbox.get("1")).last_error)
    if room.features.concurrent:
        assert (error, await state_of(log)) == ("LookupError: no", State.WAITING)
    else:
        assert (await log.find(), "holds the only write lock of" in error) == ([], True)


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


async def leaks(room: Postroom, others: dict[str, Any]) -> list[str]:
    """The rooms in which a write without `tx` is not refused inside a transactional handler of `room`."""
    inbox = room.inbox()
    written: list[str] = []

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[str], tx: Any) -> None:
        for name, other in others.items():
            with suppress(TransactionRefused):
                await settled(other.outbox().enqueue("mail", {}))
                written.append(name)

    await put(inbox, 1)
    await soon(room.drain())
    return written


async def close(*rooms: Any) -> None:
    for room in rooms:
        await settled(room.close())


@pytest.mark.parametrize("kind", THEIRS)
async def test_a_given_pool_is_on_the_database_that_it_connects_to(kind: str) -> None:
    url, elsewhere = clean_database(), create_database()
    async with THEIRS[kind](url) as pool, THEIRS[kind](elsewhere) as another:
        room = Postroom("postgresql://", pool=pool)
        there = Postroom("postgresql://", pool=another)
        rooms: dict[str, Any] = {
            "itself": room,
            "same pool": Postroom("postgresql://", pool=pool),
            "URL": Postroom(url),
            "another name of the host": Postroom(url.replace("127.0.0.1", "localhost")),
            "sync": postroom_sync.Postroom(url),
            "another database": there,
        }
        await there.migrate()
        assert await leaks(room, rooms) == ["another database"]
        await close(*rooms.values())
        by_url = Postroom(url)
        given = Postroom("postgresql://", pool=pool)
        assert await leaks(by_url, {"given": given}) == []
        await close(by_url, given)


async def test_only_the_room_itself_counts_where_a_function_makes_the_connections() -> None:
    """Nothing is known of its database."""
    url = clean_database()

    async def connect(*_given: Any, **options: Any) -> Any:
        return await asyncpg.connect(url, **options)

    async with asyncpg.create_pool(min_size=0, max_size=3, connect=connect) as pool:
        room, other = Postroom("postgresql://", pool=pool), Postroom(url)
        assert room.store.name == "postgresql:the given pool"
        assert await leaks(room, {"itself": room, "other": other}) == ["other"]
        await close(room, other)


async def test_a_file_has_many_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    room = Postroom("sqlite:///room.db")
    await room.migrate()
    others = {
        "absolute": Postroom(f"sqlite:///{tmp_path}/room.db"),
        "sync": postroom_sync.Postroom("sqlite:///room.db"),
    }
    assert await leaks(room, others) == []
    await close(room, *others.values())


@pytest.mark.parametrize("kind", THEIRS)
async def test_logs_name_the_database_of_a_given_pool(kind: str) -> None:
    async with THEIRS[kind]("postgresql://jane:secret@db.example:5433/shop") as pool:
        assert Postroom("postgresql://", pool=pool).store.name == "postgresql:db.example:5433/shop"
