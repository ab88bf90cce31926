"""`tx=` on PostgreSQL: our write commits with the caller's change, or not at all, whatever carries the transaction."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from postroom import NewMessage, OwnerToken, Postroom, ReceiptStatus, State, TransactionRefused, sync
from postroom._stores.sql.statements import Text
from postroom._stores.wrapper import innermost
from tests.engines.postgres_callers import (
    INSERT,
    KINDS,
    Caller,
    Order,
    autocommit_handles,
    clean_shop,
    every_kind,
    open_room,
    orders,
    sqlite_handles,
    sync_engine,
    what_is_no_connection,
)
from tests.postgres import create_database
from tests.support import settled

FAILED = "(a statement failed, so its transaction is aborted|its transaction has failed): roll it back"


@pytest.fixture
def url() -> str:
    return clean_shop()


@pytest.fixture
async def idle(driver: str, kind: str, url: str) -> AsyncIterator[Caller]:
    """The caller, before its transaction."""
    async with KINDS[driver][kind](url) as caller:
        yield caller


@pytest.fixture
async def caller(idle: Caller) -> Caller:
    await settled(idle.begin())
    return idle


@pytest.fixture
async def room(driver: str, url: str) -> AsyncIterator[Any]:
    """On the driver that the caller has."""
    room = open_room(url, driver)
    yield room
    await settled(room.close())


async def waiting(box: Any) -> int:
    return int((await settled(box.counts()))[State.WAITING])


@every_kind()
class TestTogether:
    @pytest.mark.req("OBX-003", "C-55", "OBX-SCP-01", "OBX-API-02")
    async def test_commits_with_the_caller(self, caller: Caller, room: Any) -> None:
        await settled(caller.run(INSERT))
        receipt = await settled(room.outbox().enqueue("order.created", {"id": 1}, tx=caller.tx))
        assert receipt.is_new
        assert await waiting(room.outbox()) == 0  # others see it with the commit
        await settled(caller.commit())
        assert (await settled(room.outbox().get(receipt.message_id))).payload == {"id": 1}
        assert len(orders()) == 1

    @pytest.mark.req("OBX-003", "C-55", "OBX-SCP-01")
    async def test_rolls_back_with_the_caller(self, caller: Caller, room: Any) -> None:
        """Our statement is the first of all: some libraries begin only with the first of their own."""
        await settled(room.outbox().enqueue("order.created", {"id": 1}, tx=caller.tx))
        await settled(caller.run(INSERT))
        await settled(caller.rollback())
        assert await settled(room.outbox().find()) == []
        assert orders() == []

    async def test_a_log_record_does_not_claim_that_it_is_stored(
        self, caller: Caller, room: Any, caplog: pytest.LogCaptureFixture
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
    async def test_the_only_statement_may_be_ours(self, caller: Caller, room: Any) -> None:
        await settled(room.outbox().enqueue("order.created", "no", tx=caller.tx))
        await settled(caller.rollback())
        assert await settled(room.outbox().find()) == []
        await settled(caller.begin())
        await settled(room.outbox().enqueue("order.created", "yes", tx=caller.tx))
        await settled(caller.commit())
        assert [message.payload for message in await settled(room.outbox().find())] == ["yes"]


@every_kind(thin=False)
class TestInside:
    async def test_a_savepoint_takes_our_row_with_it(self, caller: Caller, room: Any) -> None:
        outbox = room.outbox()
        await settled(outbox.enqueue("t", "outer", tx=caller.tx))

        async def work() -> None:
            await settled(caller.run(INSERT))
            await settled(outbox.enqueue("t", "inner", tx=caller.tx))

        await caller.undo(work)
        await settled(caller.run(INSERT))
        await settled(outbox.enqueue("t", "after", tx=caller.tx))
        await settled(caller.commit())
        assert [message.payload for message in await settled(outbox.find())] == ["outer", "after"]
        assert len(orders()) == 1

    @pytest.mark.req("C-55")
    async def test_a_duplicate_is_a_result_and_the_transaction_goes_on(self, caller: Caller, room: Any) -> None:
        inbox = room.inbox()
        await settled(inbox.enqueue("t", "before", source="s", message_id="1"))
        known = await settled(inbox.enqueue("t", "again", source="s", message_id="1", tx=caller.tx))
        many = [NewMessage("t", "x", source="s", message_id=id_) for id_ in ("1", "2", "2")]
        receipts = await settled(inbox.enqueue_many(many, tx=caller.tx))
        assert known.status is ReceiptStatus.DUPLICATE
        assert [receipt.is_new for receipt in receipts] == [False, True, False]
        await settled(caller.run(INSERT))
        await settled(caller.commit())
        assert [message.message_id for message in await settled(inbox.find())] == ["1", "2"]
        assert len(orders()) == 1

    @pytest.mark.req("C-55", "IBX-102")
    async def test_every_writing_verb_takes_part(self, caller: Caller, room: Any) -> None:
        inbox, owner = room.inbox(), OwnerToken.new()
        names = ("acked", "abandoned", "released", "failed", "marked", "buried")
        for name in names:
            await settled(inbox.enqueue("t", name, source="s", message_id=name, tx=caller.tx))
        claimed = await settled(inbox.claim(owner, tx=caller.tx))
        by_id = {message.message_id: message for message in claimed}
        assert set(by_id) == set(names)
        assert await settled(inbox.ack(owner, [by_id["acked"]], tx=caller.tx)) == [True]
        assert await settled(inbox.abandon(owner, [by_id["abandoned"]], tx=caller.tx)) == [True]
        assert await settled(inbox.release(owner, [by_id["released"]], tx=caller.tx)) == [True]
        assert await settled(inbox.fail(owner, [by_id["failed"]], "no", tx=caller.tx)) == [True]
        assert await settled(inbox.mark_processed("marked", "s", tx=caller.tx))
        assert await settled(inbox.mark_dead("buried", "s", error="no", tx=caller.tx))
        await settled(inbox.mark_processing("begun", "s", tx=caller.tx))
        assert not await settled(inbox.already_processed("unseen", "s", tx=caller.tx))
        assert len(await settled(inbox.replay(tx=caller.tx))) == 2
        await settled(caller.rollback())
        assert not any((await settled(inbox.counts())).values())

    async def test_whatever_a_message_may_have(self, caller: Caller, room: Any) -> None:
        """The caller may have set other type codecs on its connection."""
        inbox = room.inbox(order="fifo")
        due = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)
        message = NewMessage(
            "t",
            b"\x00\xff",
            source="s",
            message_id="1",
            correlation_id="c",
            group="g",
            collapse_key="k",
            headers={"name": "Jörg"},
            due=due,
            expires=due + timedelta(days=1),
            received_at=due - timedelta(days=9999),
            hash=b"hash",
        )
        await settled(inbox.enqueue_many([message], tx=caller.tx))
        await settled(inbox.enqueue("t", "now", source="s", message_id="2", group="h", tx=caller.tx))
        owner = OwnerToken.new()
        [claimed] = await settled(inbox.claim(owner, tx=caller.tx))
        await settled(caller.commit())
        stored = await settled(inbox.get("1"))
        for name in ("payload", "correlation_id", "group", "headers", "due", "expires", "received_at"):
            assert getattr(stored, name) == getattr(message, name), name
        assert await settled(inbox.ack(owner, [claimed])) == [True]

    async def test_an_error_before_the_first_statement_leaves_the_transaction_as_it_was(
        self, caller: Caller, room: Any
    ) -> None:
        await settled(caller.run(INSERT))
        with pytest.raises(TypeError):
            await settled(room.outbox().enqueue("t", object(), tx=caller.tx))
        await settled(caller.run(INSERT))
        await settled(caller.commit())
        assert len(orders()) == 2

    async def test_a_savepoint_saves_the_transaction_from_an_error_of_the_server(
        self, caller: Caller, room: Any
    ) -> None:
        engine = innermost(room.store)._driver.engine
        statements = engine.statements

        async def work() -> None:
            engine.statements = {**statements, "put_plain": Text("SELECT 1 / 0")}
            with pytest.raises(Exception, match="division by zero"):
                await settled(room.outbox().enqueue("t", "x", tx=caller.tx))
            engine.statements = statements

        await settled(caller.run(INSERT))
        await caller.undo(work)
        await settled(room.outbox().enqueue("t", "y", tx=caller.tx))
        await settled(caller.commit())
        assert [message.payload for message in await settled(room.outbox().find())] == ["y"]
        assert len(orders()) == 1


@every_kind(sync=False, thin=False)
@pytest.mark.req("C-55")
async def test_a_room_takes_connections_of_the_other_driver_too(caller: Caller, driver: str, url: str) -> None:
    other = {"asyncpg": "psycopg", "psycopg": "asyncpg"}[driver]
    async with open_room(url, other) as room:
        for name, end in (("gone", caller.rollback), ("kept", caller.commit)):
            await room.outbox().enqueue("t", name, headers={"a": "b"}, tx=caller.tx)
            await room.inbox().mark_processed(name, "s", tx=caller.tx)
            await settled(end())
            await settled(caller.begin())
        assert [message.payload for message in await room.outbox().find()] == ["kept"]
        assert [message.message_id for message in await room.inbox().find()] == ["kept"]


class TestRefusals:
    @every_kind(implicit=False)
    @pytest.mark.req("C-55")
    async def test_without_a_transaction(self, idle: Caller, room: Any) -> None:
        with pytest.raises(TransactionRefused, match=r"no open transaction: use .* around the change"):
            await settled(room.outbox().enqueue("t", "x", tx=idle.tx))
        await settled(idle.begin())
        await settled(room.outbox().enqueue("t", "x", tx=idle.tx))
        await settled(idle.commit())
        with pytest.raises(TransactionRefused, match="no open transaction"):
            await settled(room.outbox().enqueue("t", "y", tx=idle.tx))
        assert [message.payload for message in await settled(room.outbox().find())] == ["x"]

    @every_kind(thin=False)
    @pytest.mark.req("C-55")
    async def test_in_a_transaction_that_has_failed(self, caller: Caller, room: Any) -> None:
        await settled(room.outbox().enqueue("t", "x", tx=caller.tx))
        await caller.fail()
        with pytest.raises(TransactionRefused, match=FAILED):
            await settled(room.outbox().enqueue("t", "y", tx=caller.tx))
        await settled(caller.rollback())
        await settled(caller.begin())
        await settled(room.outbox().enqueue("t", "z", tx=caller.tx))
        await settled(caller.commit())
        assert [message.payload for message in await settled(room.outbox().find())] == ["z"]

    @every_kind()
    @pytest.mark.req("C-55")
    async def test_on_a_closed_connection(self, caller: Caller, room: Any) -> None:
        await settled(caller.close())
        with pytest.raises(TransactionRefused, match=r"closed|no open transaction|has failed"):
            await settled(room.outbox().enqueue("t", "x", tx=caller.tx))
        assert await settled(room.outbox().find()) == []

    @every_kind(thin=False)
    @pytest.mark.req("C-55")
    async def test_of_the_wrong_mode(self, caller: Caller, driver: str, url: str) -> None:
        is_sync = driver == "psycopg-sync"
        refusal = r"sync code: use postroom\.sync\.Postroom" if is_sync else r"async code: use postroom\.Postroom"
        room = open_room(url, "asyncpg" if is_sync else "psycopg-sync")
        with pytest.raises(TransactionRefused, match=refusal):
            await settled(room.outbox().enqueue("t", "x", tx=caller.tx))
        await settled(caller.commit())
        assert await settled(room.outbox().find()) == []
        await settled(room.close())

    @every_kind(thin=False)
    @pytest.mark.req("C-55")
    async def test_to_a_room_on_another_kind_of_database(self, caller: Caller, driver: str, tmp_path: Path) -> None:
        room: Any = (sync.Postroom if driver == "psycopg-sync" else Postroom)(f"sqlite:///{tmp_path}/room.db")
        await settled(room.migrate())
        with pytest.raises(TransactionRefused, match="on sqlite"):
            await settled(room.outbox().enqueue("t", "x", tx=caller.tx))
        assert await settled(room.outbox().find()) == []
        await settled(room.close())

    @pytest.mark.parametrize("driver", KINDS)
    @pytest.mark.req("C-55")
    async def test_of_another_kind_of_database(self, driver: str, room: Any) -> None:
        async with sqlite_handles(sync=driver == "psycopg-sync") as handles:
            for tx in handles:
                with pytest.raises(TransactionRefused, match=r"sqlite.* this store (takes|is on postgresql)"):
                    await settled(room.outbox().enqueue("t", "x", tx=tx))
        assert await settled(room.outbox().find()) == []

    @pytest.mark.parametrize("driver", KINDS)
    @pytest.mark.req("C-55")
    async def test_where_sqlalchemy_commits_every_statement(self, driver: str, url: str, room: Any) -> None:
        """It speaks of transactions, and there is none."""
        async with autocommit_handles(url, driver) as handles:
            for handle in handles:
                await settled(handle.begin())
                with pytest.raises(TransactionRefused, match="isolation level is AUTOCOMMIT"):
                    await settled(room.outbox().enqueue("t", "x", tx=handle))
                await settled(handle.rollback())
        assert await settled(room.outbox().find()) == []

    @pytest.mark.parametrize("driver", KINDS)
    @pytest.mark.req("C-55")
    async def test_what_is_no_connection(self, driver: str, url: str, room: Any) -> None:
        async with what_is_no_connection(url, driver) as things:
            for tx, refusal in things.items():
                with pytest.raises(TransactionRefused, match=refusal):
                    await settled(room.outbox().enqueue("t", "x", tx=tx))
        assert await settled(room.outbox().find()) == []

    @pytest.mark.parametrize("driver", ["psycopg-sync"])
    async def test_a_session_whose_flush_has_failed(self, url: str, room: Any) -> None:
        with orm.Session(sync_engine(url)) as session:
            session.add(Order(id=1, name="x"))
            with pytest.raises(sa.exc.DBAPIError, match="GENERATED ALWAYS"):
                session.flush()
            with pytest.raises(TransactionRefused, match=FAILED):
                room.outbox().enqueue("t", "x", tx=session)
            session.rollback()

    @pytest.mark.parametrize("driver", ["psycopg-sync"])
    async def test_an_atomic_block_that_must_roll_back(self, url: str, room: Any) -> None:
        async with KINDS["psycopg-sync"]["django"](url) as caller:
            from django.db import transaction

            with transaction.atomic():
                transaction.set_rollback(True)
                with pytest.raises(TransactionRefused, match=FAILED):
                    room.outbox().enqueue("t", "x", tx=caller.tx)


@every_kind()
async def test_a_transaction_of_another_database_is_refused(driver: str, caller: Caller) -> None:
    room = open_room(create_database(), driver)
    with pytest.raises(TransactionRefused, match="it is of the database"):
        await settled(room.outbox().enqueue("t", {}, tx=caller.tx))
    await settled(room.close())
