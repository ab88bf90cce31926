"""Transactional handlers on PostgreSQL: on the driver's connection, or on one of the user's SQLAlchemy engine."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from postroom import (
    SEPARATE,
    ArgumentTypeError,
    CommitUnknown,
    Message,
    Outcome,
    OwnerToken,
    Postroom,
    State,
    TransactionAborted,
)
from postroom.testing import FrozenClock
from tests.engines.postgres_callers import Order, clean_shop, idle_in_transaction, open_room, orders, shop
from tests.engines.postgres_pools import ASYNC_POOLS, ENGINES
from tests.runtime.support import HOUR, Gate, Logged, put, soon, state_of, states

every_pool = pytest.mark.parametrize("pool", ASYNC_POOLS)
every_driver = pytest.mark.parametrize("pool", ["asyncpg", "psycopg", "AsyncEngine-asyncpg", "AsyncEngine-psycopg"])
"""For what does not depend on whose the connections are."""


def kind_of_tx(pool: str) -> type:
    """What a handler gets: a connection of the engine that was passed, otherwise the driver's own."""
    if pool in ENGINES:
        return AsyncConnection
    return asyncpg.pool.PoolConnectionProxy if "asyncpg" in pool else psycopg.AsyncConnection


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
async def room(pool: str, clock: FrozenClock) -> AsyncIterator[Postroom]:
    """A room whose connections are its own, or come from a pool of the user's."""
    url = clean_shop()
    async with ASYNC_POOLS[pool](url) as given:
        driver = "asyncpg" if "asyncpg" in pool else "psycopg"
        room = open_room(url, driver, pool=given, clock=clock, shutdown_timeout=timedelta(seconds=2))
        yield room
        await room.stop()
        await room.close()


async def write(tx: Any, name: str) -> None:
    """The handler's own write, by the means of what it was given."""
    insert = f"INSERT INTO shop.orders (name) VALUES ('{name}')"
    await tx.execute(sa.text(insert) if isinstance(tx, AsyncConnection | AsyncSession) else insert)


@every_pool
@pytest.mark.req("C-55")
async def test_effect_outgoing_message_and_completion_commit_together(room: Postroom, pool: str) -> None:
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        assert isinstance(tx, kind_of_tx(pool))
        await write(tx, message.message_id)
        receipt = await outbox.enqueue("mail", "x", message_id=message.message_id, tx=tx)
        assert receipt.is_new
        # No other connection sees one without the other.
        assert (orders(), await outbox.find(), await state_of(inbox)) == ([], [], State.CLAIMED)

    await put(inbox, 1)
    await soon(room.drain())
    assert (orders(), await state_of(inbox), await state_of(outbox)) == (["1"], State.DONE, State.WAITING)
    assert idle_in_transaction() == 0


@every_pool
@pytest.mark.req("C-55")
@pytest.mark.parametrize(
    ("result", "state", "attempt"),
    [(ValueError("no"), State.WAITING, 1), (Outcome.RETRY.after(HOUR), State.WAITING, 0)],
    ids=["raised", "returned"],
)
async def test_whatever_is_not_success_rolls_back(room: Postroom, result: Any, state: State, attempt: int) -> None:
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> Any:
        await write(tx, message.message_id)
        await outbox.enqueue("mail", "x", tx=tx)
        if isinstance(result, Exception):
            raise result
        return result

    await put(inbox, 1)
    await soon(room.drain())
    assert (orders(), await outbox.find()) == ([], [])
    message = await inbox.get("1")
    assert (message.state, message.attempt) == (state, attempt)
    assert idle_in_transaction() == 0


@every_driver
async def test_an_error_of_the_database_rolls_back_and_is_counted(room: Postroom) -> None:
    """After it the server does nothing more in the transaction, not even for a handler that goes on."""
    inbox = room.inbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        await write(tx, message.message_id)
        with pytest.raises(Exception, match="syntax error"):
            await write(tx, "it's")

    await put(inbox, 1, 2)
    await soon(room.drain())
    assert orders() == []
    assert {(message.state, message.attempt) for message in await inbox.find()} == {(State.WAITING, 1)}


@every_pool
async def test_a_lost_lease_rolls_back(room: Postroom, clock: FrozenClock) -> None:
    inbox, outbox = room.inbox(lease_renewal=False), room.outbox()
    gate = Gate()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        await write(tx, "too late")
        await outbox.enqueue("mail", "too late", tx=tx)
        await gate(message)

    await put(inbox, 1)
    await inbox.start()
    await gate.reached()
    clock.advance(31)
    owner = OwnerToken.new()
    [claimed] = await inbox.claim(owner)
    with Logged() as logged:
        gate.open()
        await logged.says("lease lost, outcome dropped")
    await inbox.stop()
    assert (orders(), await outbox.find()) == ([], [])
    assert await inbox.ack(owner, [claimed]) == [True]  # the other worker's claim was not touched


@pytest.mark.parametrize("pool", ["asyncpg", "psycopg"])
async def test_a_handlers_own_statements_are_planned_as_usual(room: Postroom) -> None:
    """What suits our statements must not spoil the plans of theirs."""
    found: list[str] = []
    inbox = room.inbox()

    @inbox.handler("t", transactional=True)
    async def handle(_message: Message[Any], tx: Any) -> None:
        for name in ("enable_seqscan", "enable_bitmapscan"):
            if isinstance(tx, psycopg.AsyncConnection):
                found.extend(await (await tx.execute(f"SHOW {name}")).fetchone() or ())
            else:
                found.append(await tx.fetchval(f"SHOW {name}"))

    await put(inbox, 1)
    await room.drain()
    assert found == ["on", "on"]


@every_driver
async def test_the_handlers_own_savepoints(room: Postroom) -> None:
    inbox = room.inbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        nested = tx.begin_nested() if isinstance(tx, AsyncConnection) else tx.transaction()
        with suppress(LookupError):
            async with nested:
                await write(tx, "undone")
                raise LookupError
        await write(tx, "kept")

    await put(inbox, 1)
    await soon(room.drain())
    assert (orders(), await state_of(inbox)) == (["kept"], State.DONE)


@every_driver
async def test_a_batch_is_all_or_nothing(room: Postroom) -> None:
    inbox = room.inbox()

    @inbox.handler("t", batch=10, transactional=True)
    async def handle(messages: list[Message[str]], tx: Any) -> list[Any]:
        for message in messages:
            await write(tx, message.message_id)
        return [Outcome.FAILED if message.message_id == "2" else None for message in messages]

    await put(inbox, 1, 2, 3)
    await soon(room.drain())
    assert orders() == ["1", "3"]
    assert await states(inbox) == {"1": State.DONE, "2": State.WAITING, "3": State.DONE}


@every_driver
async def test_a_handler_that_ends_its_transaction_fails(room: Postroom, pool: str) -> None:
    inbox = room.inbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        await write(tx, message.message_id)
        await (tx.rollback() if hasattr(tx, "rollback") else tx.execute("ROLLBACK"))  # not this handler's to end

    await put(inbox, 1)
    with Logged() as logged:
        await soon(room.drain())
    message = await inbox.get("1")
    assert (orders(), message.state, message.attempt) == ([], State.WAITING, 1)
    assert message.last_error == "the handler ended its transaction: leave commit and rollback to the room"
    assert "begin" not in traces(logged)
    assert idle_in_transaction() == 0


def traces(logged: Logged) -> str:
    """The tracebacks of all records."""
    format_ = logging.Formatter().formatException
    return "\n".join(format_(record.exc_info) for record in logged.records if record.exc_info)


class TestAConnectionThatIsLost:
    """While the handler of a message has its transaction."""

    async def lose(self, tx: Any) -> None:
        pid = "SELECT pg_backend_pid()"
        if isinstance(tx, AsyncConnection):
            number = (await tx.execute(sa.text(pid))).scalar_one()
        elif isinstance(tx, psycopg.AsyncConnection):
            [(number,)] = await (await tx.execute(pid)).fetchall()
        else:
            number = await tx.fetchval(pid)
        ended = shop().execute("SELECT pg_terminate_backend(%s, 5000)", [number]).fetchone()
        assert ended == (True,)

    @every_driver
    @pytest.mark.parametrize("batch", [None, 2])
    async def test_before_the_commit_is_not_counted(self, room: Postroom, batch: int | None) -> None:
        inbox = room.inbox()
        calls = 0

        @inbox.handler("t", transactional=True, batch=batch)
        async def handle(_given: Any, tx: Any) -> None:
            nonlocal calls
            calls += 1
            await write(tx, "x")
            await self.lose(tx)

        await put(inbox, 1, 2)
        with Logged() as logged:
            await soon(room.drain())
        assert orders() == []
        assert {(message.state, message.attempt, message.last_error) for message in await inbox.find()} == {
            (State.WAITING, 0, None)
        }
        assert calls == (2 if batch is None else 1)
        assert len(logged.saying("is not counted: its transaction failed before it was committed: ")) == 2
        assert traces(logged) == ""

    @every_driver
    async def test_again_and_again_is_counted(self, room: Postroom, clock: FrozenClock) -> None:
        """A handler may be what closes its connection: its message must not come back for ever."""
        inbox = room.inbox(max_attempts=2)

        @inbox.handler("t", transactional=True)
        async def handle(_message: Message[str], tx: Any) -> None:
            await self.lose(tx)

        await put(inbox, 1)
        for _ in range(4):
            await soon(room.drain())
            clock.advance(HOUR)
        message = await inbox.get("1")
        assert (message.state, message.deliveries) == (State.DEAD, 4)
        assert str(message.last_error).startswith("its transaction failed before it was committed: ")

    @every_driver
    async def test_by_a_handler_that_fails_does_not_hide_its_error(self, room: Postroom) -> None:
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(_message: Message[str], tx: Any) -> None:
            await self.lose(tx)
            raise LookupError("no such customer")

        await put(inbox, 1)
        with Logged() as logged:
            await soon(room.drain())
        message = await inbox.get("1")
        assert (message.attempt, message.last_error) == (1, "LookupError: no such customer")
        assert "RollBack" not in traces(logged)

    @every_driver
    async def test_at_the_commit_is_counted_and_named(self, room: Postroom) -> None:
        """The outcome is not known. A trigger ends the session while it commits."""
        shop().execute(
            """
            CREATE OR REPLACE FUNCTION shop.leave() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN NULL; END$$;
            CREATE CONSTRAINT TRIGGER leave AFTER INSERT ON shop.orders DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION shop.leave();
            """
        )
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(_message: Message[str], tx: Any) -> None:
            await write(tx, "x")

        await put(inbox, 1)
        try:
            with Logged() as logged, pytest.raises(CommitUnknown):
                await soon(room.drain(raise_errors=True))
        finally:
            shop().execute("DROP TRIGGER leave ON shop.orders")
        message = await inbox.get("1")
        assert (message.state, message.attempt, orders()) == (State.WAITING, 1, [])
        assert re.fullmatch(
            r"the connection was lost while the transaction was committed \(\w+\), so it is not known whether it is "
            "committed",
            str(message.last_error),
        )
        assert traces(logged).count("Traceback") == 1
        assert "RollBack" not in traces(logged)


TWICE = "INSERT INTO shop.orders (id, name) OVERRIDING SYSTEM VALUE VALUES (1, 'secret'), (1, 'secret')"
UNIQUE = r"\(UniqueViolation(Error)?, SQLSTATE 23505, constraint orders_pkey\)"
ABORTED = (
    f"a statement failed {UNIQUE}, so its transaction is aborted: let the error out of the handler. "
    "To continue after a statement that may fail, run it in a savepoint"
)


async def run(tx: Any, statement: str) -> None:
    await tx.execute(sa.text(statement) if isinstance(tx, AsyncConnection | AsyncSession) else statement)


def savepoint(tx: Any) -> Any:
    return tx.begin_nested() if isinstance(tx, AsyncConnection) else tx.transaction()


class TestErrorsOfTheDatabaseThatAHandlerCatches:
    """PostgreSQL has aborted the transaction, whatever the handler thinks."""

    @every_pool
    async def test_are_named_as_what_they_are(self, room: Postroom, caplog: pytest.LogCaptureFixture) -> None:
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: Any) -> None:
            await write(tx, message.message_id)
            with suppress(asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation, sa.exc.IntegrityError):
                await run(tx, TWICE)

        await put(inbox, 1, 2)
        await soon(room.drain())
        assert orders() == []
        for message in await inbox.find():
            assert (message.state, message.attempt) == (State.WAITING, 1)
            assert re.match(ABORTED, str(message.last_error))
        assert "secret" not in caplog.text
        assert idle_in_transaction() == 0

    @every_driver
    async def test_the_one_that_counts_is_named(self, room: Postroom) -> None:
        """Not one that a savepoint has undone, and not those that come after it."""
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: Any) -> None:
            with suppress(Exception):
                async with savepoint(tx):
                    await run(tx, "SELECT 1 / 0")
            for statement in (TWICE, "SELECT 1", "SELECT 1 / 0"):
                with suppress(Exception):
                    await run(tx, statement)

        await put(inbox, 1)
        await soon(room.drain())
        assert re.match(ABORTED, str((await inbox.get("1")).last_error))

    @every_driver
    async def test_is_raised_by_the_verbs_too(self, room: Postroom) -> None:
        inbox, outbox = room.inbox(), room.outbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: Any) -> None:
            with suppress(Exception):
                await run(tx, TWICE)
            await outbox.enqueue("mail", "x", tx=tx)

        await put(inbox, 1)
        await soon(room.drain())
        assert re.match(f"TransactionAborted: {ABORTED}", str((await inbox.get("1")).last_error))

    @every_driver
    @pytest.mark.parametrize("batch", [None, 3])
    async def test_is_named_where_the_next_statement_fails_too(self, room: Postroom, batch: int | None) -> None:
        inbox = room.inbox()

        @inbox.handler("t", transactional=True, batch=batch)
        async def handle(_given: Any, tx: Any) -> None:
            with suppress(asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation, sa.exc.IntegrityError):
                await run(tx, TWICE)
            await write(tx, "instead")

        await put(inbox, 1, 2)
        with pytest.raises(ExceptionGroup) as raised:
            await soon(room.drain(raise_errors=True))
        assert [type(error) for error in raised.value.exceptions] == [TransactionAborted] * 2
        for message in await inbox.find():
            assert message.attempt == 1
            assert re.match(ABORTED, str(message.last_error))

    @every_driver
    async def test_in_a_savepoint_cost_nothing(self, room: Postroom) -> None:
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: Any) -> None:
            with suppress(asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation, sa.exc.IntegrityError):
                async with savepoint(tx):
                    await run(tx, TWICE)
            await write(tx, message.message_id)

        await put(inbox, 1)
        await soon(room.drain())
        assert (orders(), await state_of(inbox)) == (["1"], State.DONE)

    @pytest.mark.parametrize("pool", ENGINES)
    async def test_of_a_session_that_rolls_everything_back(self, room: Postroom) -> None:
        """The session ends the transaction because a flush failed: the log must say both."""
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: AsyncConnection) -> None:
            async with AsyncSession(bind=tx) as session:
                try:
                    await run(session, TWICE)
                except sa.exc.IntegrityError:
                    await session.rollback()

        await put(inbox, 1)
        await soon(room.drain())
        expected = f"the handler ended its transaction: .* Before that, a statement failed {UNIQUE}"
        assert re.match(expected, str((await inbox.get("1")).last_error))


@every_driver
async def test_many_at_once(room: Postroom) -> None:
    """More handlers than there are connections."""
    inbox, log = room.inbox(concurrency=12, batch_size=30), room.outbox("log")

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        await write(tx, message.message_id)
        await log.enqueue("seen", "x", message_id=message.message_id, tx=tx)

    await put(inbox, *range(60))
    assert await soon(room.drain(), 30) == 60
    assert sorted(map(int, orders())) == list(range(60))
    assert set((await states(inbox)).values()) == {State.DONE}
    assert len(await states(log)) == 60
    assert idle_in_transaction() == 0


@every_driver
async def test_a_cancelled_handler_leaves_nothing_behind(room: Postroom) -> None:
    inbox = room.inbox(handler_timeout=timedelta(milliseconds=50))

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        await write(tx, message.message_id)
        sleep = "SELECT pg_sleep(60)"
        await tx.execute(sa.text(sleep) if isinstance(tx, AsyncConnection) else sleep)

    await put(inbox, 1)
    await soon(room.drain())
    assert orders() == []
    assert (await inbox.get("1")).attempt == 1
    assert idle_in_transaction() == 0


@pytest.mark.parametrize("pool", ["asyncpg", "psycopg"])
async def test_handlers_leave_connections_for_the_verbs(room: Postroom) -> None:
    """Each handler has a transaction open, and waits for a write that is not part of it."""
    inbox, log = room.inbox(concurrency=12, batch_size=30), room.outbox("log")

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: Any) -> None:
        await write(tx, message.message_id)
        await log.enqueue("seen", "x", message_id=message.message_id, tx=SEPARATE)

    await put(inbox, *range(30))
    assert await soon(room.drain(), 30) == 30
    assert len(orders()) == len(await states(log)) == 30


@pytest.mark.parametrize("pool", ENGINES)
class TestSessions:
    """A session on the handler's connection joins its transaction."""

    async def test_commits_with_the_completion(self, room: Postroom) -> None:
        inbox, outbox = room.inbox(), room.outbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: AsyncConnection) -> None:
            async with AsyncSession(bind=tx) as session, session.begin():
                order = Order(name=message.message_id)
                session.add(order)
                await session.flush()
                await outbox.enqueue("placed", {"order": order.id}, message_id=message.message_id, tx=session)
            assert (orders(), await outbox.find()) == ([], [])  # the session's commit was not the end

        await put(inbox, 1)
        await soon(room.drain())
        assert (orders(), await states(inbox), await states(outbox)) == (
            ["1"],
            {"1": State.DONE},
            {"1": State.WAITING},
        )

    async def test_rolls_back_with_the_handler(self, room: Postroom) -> None:
        inbox, outbox = room.inbox(), room.outbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: AsyncConnection) -> None:
            async with AsyncSession(bind=tx) as session, session.begin():
                session.add(Order(name="x"))
                await outbox.enqueue("placed", "x", tx=session)
            raise ValueError("no")

        await put(inbox, 1)
        await soon(room.drain())
        assert (orders(), await outbox.find(), (await inbox.get("1")).attempt) == ([], [], 1)

    async def test_a_session_that_rolled_back_is_not_taken_for_success(self, room: Postroom) -> None:
        inbox = room.inbox()

        @inbox.handler("t", transactional=True)
        async def handle(message: Message[str], tx: AsyncConnection) -> None:
            async with AsyncSession(bind=tx) as session:
                session.add(Order(name="x"))
                await session.flush()
                await session.rollback()

        await put(inbox, 1)
        await soon(room.drain())
        message = await inbox.get("1")
        assert (orders(), message.state, message.attempt) == ([], State.WAITING, 1)


# -- a handler that asks for a session ---------------------------------------------------------------------------------

every_engine = pytest.mark.parametrize("pool", ENGINES)


@every_engine
@pytest.mark.req("C-55")
async def test_a_handler_that_asks_for_a_session_gets_one(room: Postroom) -> None:
    """What it has only added is written before the message is done, and all of it commits together."""
    inbox, outbox = room.inbox(), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: AsyncSession) -> None:
        assert isinstance(tx, AsyncSession)
        await outbox.enqueue("mail", "x", message_id=message.message_id, tx=tx)
        tx.add(Order(name=message.message_id))
        assert (orders(), await state_of(inbox)) == ([], State.CLAIMED)

    await put(inbox, 1)
    await soon(room.drain())
    assert (orders(), await state_of(inbox), await state_of(outbox)) == (["1"], State.DONE, State.WAITING)
    assert idle_in_transaction() == 0


@every_engine
@pytest.mark.parametrize("way", ["raises", "outcome", "flush fails"])
async def test_a_session_is_rolled_back_with_its_handler(room: Postroom, way: str) -> None:
    inbox, outbox = room.inbox(max_attempts=1), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: AsyncSession) -> Outcome | None:
        await outbox.enqueue("mail", "x", tx=tx)
        tx.add(Order(name="a"))
        await tx.flush()
        if way == "raises":
            raise LookupError
        if way == "outcome":
            return Outcome.DEAD
        tx.add(Order(id=1, name="b"))
        tx.add(Order(id=1, name="c"))
        return None

    await put(inbox, 1)
    await soon(room.drain())
    assert (orders(), await outbox.find(), await state_of(inbox)) == ([], [], State.DEAD)
    assert idle_in_transaction() == 0


@every_engine
async def test_a_session_that_is_committed_by_its_handler_commits_nothing(room: Postroom) -> None:
    """The transaction is the worker's: the session writes, and the worker commits or rolls back."""
    inbox = room.inbox(max_attempts=1)

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: AsyncSession) -> None:
        tx.add(Order(name="a"))
        before = orders()
        await tx.commit()
        assert orders() == before
        if message.message_id == "2":
            raise LookupError

    await put(inbox, 1, 2)
    await soon(room.drain())
    assert (orders(), await states(inbox)) == (["a"], {"1": State.DONE, "2": State.DEAD})


@every_engine
@pytest.mark.parametrize("flushes", [True, False])
async def test_a_session_that_its_handler_closes_loses_no_change(room: Postroom, *, flushes: bool) -> None:
    """`close` drops changes that are not flushed: the attempt fails, and none of its writes commits."""
    inbox, outbox = room.inbox(max_attempts=1), room.outbox()

    @inbox.handler("t", transactional=True)
    async def handle(message: Message[str], tx: AsyncSession) -> None:
        async with tx:
            await outbox.enqueue("mail", "x", tx=tx)
            tx.add(Order(name="a"))
            if flushes:
                await tx.flush()

    await put(inbox, 1)
    await soon(room.drain())
    message = await inbox.get("1")
    if flushes:
        assert (orders(), message.state, len(await outbox.find())) == (["a"], State.DONE, 1)
    else:
        assert (orders(), message.state, await outbox.find()) == ([], State.DEAD, [])
        assert "closed its session" in (message.last_error or "")


@every_engine
async def test_an_annotation_that_leaves_open_what_to_pass_is_refused(room: Postroom) -> None:
    """Otherwise the handler gets a connection, and commits on it what a session would not."""

    class Own(AsyncSession): ...

    async def optional(message: Message, tx: AsyncSession | None) -> None: ...
    async def either(message: Message, tx: AsyncSession | AsyncConnection) -> None: ...
    async def maker(message: Message, tx: async_sessionmaker[AsyncSession]) -> None: ...
    async def sync_session(message: Message, tx: Session) -> None: ...
    async def misspelt(message: Message, tx: AsyncSesion) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    async def text(message: Message, tx: str) -> None: ...
    async def connection(message: Message, tx: AsyncConnection) -> None: ...

    register = room.inbox().handler("t", transactional=True)
    for function in (optional, either, maker, sync_session):
        with pytest.raises(
            ArgumentTypeError, match=r"annotate it with sqlalchemy.AsyncSession alone, to get a session"
        ):
            register(function)
    with pytest.raises(ArgumentTypeError, match="AsyncSesion, which cannot be resolved at run time"):
        register(misspelt)
    with pytest.raises(ArgumentTypeError, match=r"a sqlalchemy.AsyncConnection: .* that, or with .*AsyncSession"):
        register(text)
    register(connection)

    async def own(message: Message, tx: Own) -> None:
        assert isinstance(tx, Own)

    own.__annotations__["tx"] = Own  # a local class
    room.inbox().handler("own", transactional=True)(own)
    await room.inbox().enqueue("own", {}, source="s", message_id="1")
    await soon(room.drain(raise_errors=True))


@pytest.mark.parametrize("pool", ["asyncpg", "psycopg"])
async def test_a_session_needs_an_engine(room: Postroom, pool: str) -> None:
    async def handle(message: Message, tx: AsyncSession) -> None: ...
    async def right(message: Message, tx: asyncpg.Connection) -> None: ...
    async def also_right(message: Message, tx: psycopg.AsyncConnection[Any]) -> None: ...

    with pytest.raises(ArgumentTypeError, match=rf"this room passes a {pool}\..*your SQLAlchemy engine .* pool="):
        room.inbox().handler("t", transactional=True)(handle)
    fits, other = (right, also_right) if pool == "asyncpg" else (also_right, right)
    room.inbox().handler("t", transactional=True)(fits)
    if pool == "psycopg":
        with pytest.raises(ArgumentTypeError, match=r"with asyncpg\.Connection, .* a psycopg\.AsyncConnection"):
            room.inbox().handler("u", transactional=True)(other)
