"""Transactional handlers: their writes, their outgoing messages and the completion commit together, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from postroom import Backoff, Message, Outcome, OwnerToken, Postroom, State, TransactionRefused
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, always, put, soon, state_of, states

pytestmark = pytest.mark.parametrize("store", ["aiosqlite"])

Effects = Callable[[], list[str]]


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    """What handlers wrote and committed, in order."""
    path = f"{tmp_path}/room.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE effect (number INTEGER PRIMARY KEY, id TEXT)")
    connection.close()

    def read() -> list[str]:
        connection = sqlite3.connect(path)
        try:
            return [id_ for (id_,) in connection.execute("SELECT id FROM effect ORDER BY number")]
        finally:
            connection.close()

    return read


async def write(message: Message[Any], tx: aiosqlite.Connection) -> None:
    await tx.execute("INSERT INTO effect (id) VALUES (?)", [message.message_id])


@pytest.mark.req("C-01")
async def test_effect_and_completion_commit_together(still: Postroom, effects: Effects) -> None:
    box = still.inbox()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)
        # No other connection sees one without the other.
        assert (effects(), await state_of(box)) == ([], State.CLAIMED)

    await put(box, 1)
    await soon(still.drain())
    assert (effects(), await state_of(box)) == (["1"], State.DONE)


@pytest.mark.parametrize(
    ("result", "state", "attempt"),
    [
        (ValueError("no"), State.WAITING, 1),
        (Outcome.FAILED, State.WAITING, 1),
        (Outcome.RETRY.after(HOUR), State.WAITING, 0),
        (Outcome.DEAD, State.DEAD, 1),
        ("garbage", State.WAITING, 1),
    ],
)
async def test_whatever_is_not_success_rolls_back(
    still: Postroom, effects: Effects, result: Any, state: State, attempt: int
) -> None:
    box, outbox = still.inbox(), still.outbox()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> Any:
        await write(message, tx)
        await outbox.enqueue("mail", "x", tx=tx)
        if isinstance(result, Exception):
            raise result
        return result

    await put(box, 1)
    await soon(still.drain())
    assert effects() == []
    assert await outbox.find() == []
    message = await box.get("1")
    assert (message.state, message.attempt) == (state, attempt)


async def test_a_timeout_rolls_back(still: Postroom, effects: Effects) -> None:
    box = still.inbox(handler_timeout=timedelta(milliseconds=20))

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)
        await asyncio.Event().wait()

    await put(box, 1)
    await soon(still.drain())
    assert effects() == []
    assert (await box.get("1")).attempt == 1


async def test_outgoing_messages_go_with_it(room: Postroom, effects: Effects) -> None:
    inbox, outbox = room.inbox(poll_interval=HOUR), room.outbox(poll_interval=HOUR)
    sent = asyncio.Event()

    @inbox.handler("order", transactional=True)
    async def placed(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)
        await outbox.enqueue("mail", {"to": message.message_id}, message_id="m", tx=tx)

    @outbox.handler("mail")
    async def mail(message: Message[Any]) -> None:
        assert message.payload == {"to": "1"}
        sent.set()

    await room.start()
    await put(inbox, 1, topic="order")
    await soon(sent.wait())
    await room.stop()
    assert effects() == ["1"]
    assert (await state_of(inbox), await state_of(outbox, "m")) == (State.DONE, State.DONE)


@pytest.mark.parametrize("how", ["taken", "marked"])
async def test_a_lost_claim_rolls_back(open_room: OpenRoom, clock: FrozenClock, effects: Effects, how: str) -> None:
    """Its transaction holds SQLite's lock, so the claim must be lost before the handler writes."""
    room = await open_room(clock)
    box = room.inbox(lease_renewal=False)
    gate = Gate()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await tx.rollback()
        await gate(message)
        await tx.execute("BEGIN IMMEDIATE")
        await write(message, tx)

    await put(box, 1)
    await box.start()
    await gate.reached()
    if how == "taken":
        clock.advance(31)
        owner = OwnerToken.new()
        [claimed] = await box.claim(owner)
        assert claimed.deliveries == 2
    else:
        await box.mark_processed("1", "s")
    with Logged() as logged:
        gate.open()
        await logged.says("lease lost, outcome dropped")
    await box.stop()
    assert effects() == []
    assert gate.entered[0].lease_lost
    if how == "taken":  # the other worker's claim was not touched
        assert await box.ack(owner, [claimed]) == [True]


async def test_a_batch_is_all_or_nothing(still: Postroom, clock: FrozenClock, effects: Effects) -> None:
    box = still.inbox(backoff=Backoff.constant(10))

    @box.handler("t", batch=10, transactional=True)
    async def handle(messages: list[Message[str]], tx: aiosqlite.Connection) -> list[Any]:
        for message in messages:
            await write(message, tx)
        return [Outcome.FAILED if m.message_id == "2" and not m.attempt else None for m in messages]

    await put(box, 1, 2, 3)
    await soon(still.drain())
    # The failure is counted and waits; the others were rolled back with it, and were done without it.
    assert effects() == ["1", "3"]
    found = {m.message_id: (m.state, m.attempt, m.deliveries) for m in await box.find()}
    assert found == {"1": (State.DONE, 0, 2), "2": (State.WAITING, 1, 1), "3": (State.DONE, 0, 2)}
    clock.advance(10)
    await soon(still.drain())
    assert effects() == ["1", "3", "2"]


async def test_a_failure_in_a_groups_batch_is_counted(still: Postroom, clock: FrozenClock, effects: Effects) -> None:
    box = still.inbox(order="fifo", backoff=Backoff.constant(10), max_attempts=2)
    batches = 0

    @box.handler("t", batch=10, transactional=True)
    async def handle(messages: list[Message[str]], tx: aiosqlite.Connection) -> list[Any]:
        nonlocal batches
        batches += 1
        for message in messages:
            await write(message, tx)
        return [Outcome.FAILED if m.message_id == "2" else None for m in messages]

    await put(box, 1, 2, 3, group="g")
    await soon(still.drain())
    assert effects() == ["1"]  # it was rolled back once, and then done alone
    assert (await box.get("2")).attempt == 1
    clock.advance(10)
    await soon(still.drain())
    assert effects() == ["1", "3"]
    assert await states(box) == {"1": State.DONE, "2": State.DEAD, "3": State.DONE}
    assert batches == 4


async def test_part_of_a_batch_lost(open_room: OpenRoom, clock: FrozenClock, effects: Effects) -> None:
    """Those that still hold are given back at once: they need not wait for their leases."""
    room = await open_room(clock)
    box = room.inbox(lease_renewal=False, poll_interval=HOUR)
    gate, again = Gate(), asyncio.Event()

    @box.handler("t", batch=10, transactional=True)
    async def handle(messages: list[Message[str]], tx: aiosqlite.Connection) -> None:
        if len(messages) == 2:
            await tx.rollback()
            await gate(messages)
            await tx.execute("BEGIN IMMEDIATE")
        else:
            again.set()
        for message in messages:
            await write(message, tx)

    await put(box, 1, 2)
    await box.start()
    await gate.reached()
    await box.mark_processed("1", "s")
    gate.open()
    await soon(again.wait())
    await box.stop()
    assert effects() == ["2"]
    assert set((await states(box)).values()) == {State.DONE}


async def test_one_by_one_in_a_group(room: Postroom, effects: Effects) -> None:
    box = room.inbox(order="fifo", batch_size=3, poll_interval=HOUR)
    done = asyncio.Event()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)
        if message.message_id == "9":
            done.set()

    await put(box, *range(10), group="g")
    await room.start()
    await soon(done.wait())
    await room.stop()
    assert effects() == list("0123456789")


async def test_a_broken_transaction_counts_as_a_failure(still: Postroom, effects: Effects) -> None:
    box = still.inbox()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)
        await tx.execute("ROLLBACK")  # not this handler's to end

    await put(box, 1)
    with Logged() as logged:
        await soon(still.drain())
    assert effects() == []
    message = await box.get("1")
    assert (message.state, message.attempt) == (State.WAITING, 1)
    assert message.last_error == "the handler ended its transaction: leave commit and rollback to the room"
    [record] = logged.saying("attempt 1 of 10 failed: the handler ended its transaction")
    assert "message_id=1" in record.message


async def test_a_transaction_that_fails_is_raised_by_a_drain(still: Postroom) -> None:
    box = still.inbox()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await tx.execute("ROLLBACK")

    await put(box, 1)
    with pytest.raises(TransactionRefused):
        await soon(still.drain(raise_errors=True))


async def test_transactions_beside_each_other_and_other_handlers(room: Postroom, effects: Effects) -> None:
    box = room.inbox(concurrency=4, batch_size=10)

    @box.handler("tx", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)

    box.handler("plain")(always())
    await put(box, *range(30), topic="tx")
    await put(box, *range(30, 60), topic="plain")
    assert await soon(room.drain(), 30) == 60
    assert sorted(effects(), key=int) == [str(n) for n in range(30)]
    assert set((await states(box)).values()) == {State.DONE}


async def test_shutdown_in_the_middle_rolls_back_uncounted(
    open_room: OpenRoom, effects: Effects, events: Events
) -> None:
    room = await open_room(observers=[events], shutdown_timeout=SOON)
    box = room.inbox()
    gate = Gate()

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)
        await gate(message)

    await put(box, 1)
    await room.start()
    await gate.reached()
    await soon(room.stop())
    assert effects() == []
    message = await box.get("1")
    assert (message.state, message.attempt) == (State.WAITING, 0)


async def test_a_renewal_during_the_commit_is_no_lost_lease(room: Postroom, effects: Effects, events: Events) -> None:
    """The completion ends the claim before the worker knows that it is committed."""
    box = room.inbox(lease_seconds=1, lease_renewal=0.1)
    begin = room.store.transaction

    @asynccontextmanager
    async def slow_to_return() -> AsyncIterator[Any]:
        async with begin() as tx:
            yield tx
        await events.wait("renew", count=len(events.of("renew")) + 2)

    room.store.transaction = slow_to_return

    @box.handler("t", transactional=True)
    async def handle(message: Message[str], tx: aiosqlite.Connection) -> None:
        await write(message, tx)

    await put(box, 1)
    with Logged() as logged:
        await soon(room.drain())
    assert (effects(), await state_of(box)) == (["1"], State.DONE)
    assert logged.saying("lease lost") == []
