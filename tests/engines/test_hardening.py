"""What an attacker found: each of these broke a promise once."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import FeatureMissing, NewMessage, OwnerToken, SchemaMissing, State, TransactionRefused
from postroom import sync as postroom_sync
from postroom.testing import Events

OWNER = OwnerToken.new()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes can fork")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_nothing_is_lost_across_a_fork(mode: str, tmp_path: Path) -> None:
    """SQLite's locks do not cross a fork: a connection from before it would write into a log that is deleted."""
    url = f"sqlite:///{tmp_path}/room.db"
    room: Any = (postroom_sync if mode == "sync" else postroom).Postroom(url, deploy_schema=True)

    def enqueue(payload: str) -> None:
        result = room.outbox().enqueue("t", payload)
        if mode == "async":
            asyncio.run(result)

    enqueue("before")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enqueue("child")
            os.read(reading, 1)
            for number in range(5):
                enqueue(f"child {number}")
        finally:
            os._exit(0)
    closed = room.close()
    if mode == "async":
        asyncio.run(closed)
    os.write(writing, b"x")
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    with postroom_sync.Postroom(url) as fresh:
        assert fresh.outbox().counts()[State.WAITING] == 7


def test_a_dict_as_row_factory(tmp_path: Path) -> None:
    with postroom_sync.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as room:
        room.outbox().counts()
        connection = sqlite3.connect(tmp_path / "room.db")
        connection.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        connection.execute("BEGIN")
        assert room.outbox().enqueue("t", "x", tx=connection).is_new
        connection.commit()
        connection.close()


def test_a_payload_that_cannot_be_decoded_costs_its_batch_nothing() -> None:
    with postroom_sync.Postroom("memory://") as room:
        outbox = room.outbox()
        depth, stored = sys.getrecursionlimit(), False
        while not stored:
            deep: list[Any] = []
            for _ in range(depth):
                deep = [deep]
            try:
                stored = outbox.enqueue("t", deep).is_new
            except TypeError:
                depth -= 10
        outbox.enqueue("t", "innocent")
        assert "innocent" in [message.payload for message in outbox.claim(OWNER)]


def test_a_relative_path_is_that_of_the_first_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with postroom_sync.Postroom("sqlite:///room.db", deploy_schema=True) as room:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        room.outbox().enqueue("t", "x")
    assert (tmp_path / "room.db").exists()
    assert not (tmp_path / "other" / "room.db").exists()


async def test_a_private_memory_database_has_no_transactions_to_share() -> None:
    async with postroom.Postroom("sqlite:///:memory:", deploy_schema=True) as room:
        with pytest.raises(FeatureMissing):
            room.inbox().handler("t", transactional=True)(lambda _message, _tx: None)  # type: ignore[type-var]
        await room.inbox().enqueue("t", "x", source="s", message_id="1")


async def test_a_write_without_tx_inside_a_transaction_is_refused_at_once(tmp_path: Path) -> None:
    async with postroom.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as room:
        inbox, outbox = room.inbox(max_attempts=1), room.outbox()

        @inbox.handler("t", transactional=True)
        async def forgetful(message: object, tx: Any) -> None:
            await outbox.enqueue("mail", "x")

        await inbox.enqueue("t", "x", source="s", message_id="1")
        await room.drain()
        assert "pass tx=tx" in ((await inbox.get("1")).last_error or "")
        with pytest.raises(TransactionRefused, match="pass tx=tx"):
            async with room.store.transaction():
                await outbox.enqueue("mail", "x")
        assert (await outbox.enqueue("mail", "x")).is_new


async def test_transactional_handlers_take_turns_and_waiting_is_not_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroom._stores.sql.sqlite import connection as sqlite

    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    async with postroom.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as room:
        inbox = room.inbox(max_attempts=1, concurrency=5)
        inside = 0

        @inbox.handler("t", transactional=True)
        async def slow(message: object, tx: Any) -> None:
            nonlocal inside
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.02)
            inside -= 1

        await inbox.enqueue_many([NewMessage("t", "x", "s", str(number)) for number in range(10)])
        await room.drain()
        assert (await inbox.counts())[State.DONE] == 10


async def test_reading_inside_a_transaction_does_not_wait_for_it(tmp_path: Path) -> None:
    """Meanwhile the room's own writes wait for the lock: a read must not stand behind them."""
    async with postroom.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as room:
        outbox = room.outbox()
        await outbox.enqueue("mail", "x")
        async with room.store.transaction() as tx:
            await outbox.enqueue("mail", "y", tx=tx)
            context = contextvars.Context()  # another task's: inside ours it would be refused
            claiming = asyncio.get_running_loop().create_task(outbox.claim(OWNER), context=context)
            async with asyncio.timeout(10):
                assert (await outbox.counts())[State.WAITING] == 1
        assert len(await claiming) == 2


async def test_whatever_a_handler_raises_is_a_failed_attempt() -> None:
    class Panic(BaseException):
        """As a Rust extension may raise."""

    async with postroom.Postroom("memory://") as room:
        inbox, handled = room.inbox(max_attempts=1), list[str]()

        @inbox.handler("t")
        async def panics(message: postroom.Message[Any]) -> None:
            if message.message_id == "bad":
                raise Panic
            handled.append(message.message_id)

        await inbox.enqueue_many([NewMessage("t", "x", "s", name) for name in ("bad", "1", "2")])
        await room.drain()
        assert handled == ["1", "2"]
        assert (await inbox.get("bad")).state is State.DEAD


async def test_a_worker_on_missing_tables_says_so_at_the_start(tmp_path: Path) -> None:
    events = Events()
    room = postroom.Postroom(f"sqlite:///{tmp_path}/room.db", observers=[events])
    room.inbox().handler("t")(lambda _message: None)
    with pytest.raises(SchemaMissing):
        await room.start()
    assert not room.is_running
    await room.close()


def test_a_room_without_handlers_does_not_run_for_ever() -> None:
    with pytest.raises(postroom.ArgumentValueError, match="no handlers"):
        postroom.Postroom("memory://").run()


def test_a_handler_without_a_topic_is_refused() -> None:
    with pytest.raises(postroom.ArgumentTypeError, match="@inbox"):

        @postroom.Postroom("memory://").inbox().handler  # type: ignore[call-overload]
        async def handle(message: object) -> None:
            """Never registered."""
