"""PostgreSQL: short locks of other clients change no result."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from postroom import Inbox, Message, NewMessage, Postroom, Receipt, State
from postroom.testing import Events, FrozenClock
from tests.scenarios.conftest import OpenRoom
from tests.scenarios.locks import begun, connected, row_locked
from tests.scenarios.support import LEASE, ids, on_postgres, owner, put

HOUR = timedelta(hours=1)


async def lease_end(message: Message[Any]) -> Any:
    async with connected() as connection:
        return await connection.fetchval("SELECT lease_until FROM postroom_queue WHERE id = $1", message.id)


# -- renew -----------------------------------------------------------------------------------------------------------


@on_postgres
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_renewal_is_not_lost_to_a_lock(still: Postroom, clock: FrozenClock, *, order: Any) -> None:
    inbox = still.inbox(order=order)
    worker = owner()
    await put(inbox, 1, 2, group="g")
    [head] = await inbox.claim(worker, LEASE, 1)
    clock.advance(LEASE / 2)
    async with row_locked(head.id):
        renewal = await begun(inbox.renew(worker, [head], LEASE))
    assert await renewal == [True]
    assert await lease_end(head) == clock.now() + timedelta(seconds=LEASE)
    clock.advance(LEASE - 1)  # more than the first lease
    assert "1" not in ids(await inbox.claim(owner(), LEASE, 1))


@on_postgres
async def test_a_renewal_of_several_is_not_lost_to_one_lock(still: Postroom, clock: FrozenClock) -> None:
    inbox = still.inbox(order="fifo")
    worker = owner()
    await put(inbox, 1, 2, 3, group="g")
    claimed = await inbox.claim(worker, LEASE, 3)
    clock.advance(LEASE / 2)
    async with row_locked(claimed[1].id):
        renewal = await begun(inbox.renew(worker, claimed, LEASE))
    assert await renewal == [True] * 3
    assert {await lease_end(message) for message in claimed} == {clock.now() + timedelta(seconds=LEASE)}


@on_postgres
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_renew_returns_whether_the_lease_was_renewed(
    still: Postroom, clock: FrozenClock, *, order: Any, commits: bool
) -> None:
    """A second delivery of the message is put meanwhile, in a transaction that is still open."""
    inbox = still.inbox(order=order, on_stale_ack="requeue")
    worker = owner()
    await put(inbox, 1, group="g")
    [message] = await inbox.claim(worker, LEASE)
    clock.advance(LEASE / 2)
    again = NewMessage("t", "y", source="s", message_id="1", group="g")
    with suppress(_RollBack):
        async with still.store.transaction() as tx:
            await inbox.enqueue_many([again], tx=tx)
            renewal = await begun(inbox.renew(worker, [message], LEASE))
            if renewal.done():
                # The transaction of the caller may last: what renew returns is already true of the store.
                moved = await lease_end(message) == clock.now() + timedelta(seconds=LEASE)
                assert await renewal == [moved]
            if not commits:
                raise _RollBack
    moved = await lease_end(message) == clock.now() + timedelta(seconds=LEASE)
    assert await renewal == [moved]


class _RollBack(Exception):
    """Ends a transaction."""


# -- a running handler -----------------------------------------------------------------------------------------------

CLIENTS = 4
SHORT_LEASE, WORK = 1.5, 3.0
"""Seconds."""


@pytest.mark.parametrize("store", ["asyncpg"])
async def test_a_running_handler_keeps_its_group(open_room: OpenRoom, events: Events) -> None:
    """Other clients put messages into its group and claim all the time."""
    room = await open_room(observers=[events])
    inbox = room.inbox(order="fifo", lease_seconds=SHORT_LEASE)
    others = [(await open_room()).inbox(order="fifo") for _ in range(CLIENTS)]
    begins, over = asyncio.Event(), asyncio.Event()
    calls: list[str] = []
    stolen: list[str] = []

    @inbox.handler("t")
    async def handle(message: Message[str]) -> None:
        calls.append(message.message_id)
        begins.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(WORK):
                await over.wait()
        over.set()

    async def disturb(other: Inbox, name: str) -> None:
        for number in itertools.count():
            await put(other, f"{name} {number}", group="g")
            claimed = await other.claim(owner(), LEASE)
            if over.is_set():
                return
            if claimed:
                stolen.extend(ids(claimed))
                over.set()

    await put(inbox, "head", group="g")
    await room.start()
    async with asyncio.timeout(5):
        await begins.wait()
    await asyncio.gather(*(disturb(other, f"client {number}") for number, other in enumerate(others)))
    await inbox.stop()
    assert stolen == []
    assert [message.message_id for event in events.of("lost") for message in event.given] == []
    assert calls.count("head") == 1
    assert (await inbox.get("head")).state is State.DONE


# -- collapse --------------------------------------------------------------------------------------------------------


@on_postgres
@pytest.mark.parametrize("in_transaction", [False, True], ids=["alone", "in tx"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_collapse_supersedes_a_message_that_another_client_has_locked(
    still: Postroom, clock: FrozenClock, *, order: Any, in_transaction: bool
) -> None:
    """The older message waits for its retry, and claims look at what comes behind it."""
    inbox = still.inbox(order=order)
    worker = owner()
    await put(inbox, 1, group="g", collapse_key="price")
    [older] = await inbox.claim(worker, LEASE)
    await inbox.abandon(worker, [older], delay=HOUR)

    async def put_newer() -> list[Receipt]:
        newer = [NewMessage("t", "y", source="s", message_id="2", group="g", collapse_key="price")]
        if not in_transaction:
            return await inbox.enqueue_many(newer)
        async with still.store.transaction() as tx:
            return await inbox.enqueue_many(newer, tx=tx)

    async with row_locked(older.id):
        putting = await begun(put_newer())
    [receipt] = await putting
    assert receipt.superseded == (older.id,)
    assert (await inbox.get("1")).state is State.DONE
    assert ids(await inbox.claim(worker, LEASE)) == ["2"]


@on_postgres
async def test_collapse_supersedes_while_other_clients_claim(open_room: OpenRoom) -> None:
    rooms = [await open_room() for _ in range(CLIENTS)]
    inboxes = [room.inbox(order="fifo") for room in rooms]
    inbox, worker = inboxes[0], owner()
    missed: list[int] = []
    for number in range(25):
        group = f"g{number}"
        await put(inbox, f"{number} older", group=group, collapse_key=group)
        [older] = await inbox.claim(worker, LEASE)
        await inbox.abandon(worker, [older], delay=HOUR)
        await inbox.enqueue_many(
            [NewMessage("t", "x", source="s", message_id=f"{number} {place}", group=group) for place in range(3)]
        )

        async def claim_often(other: Inbox) -> None:
            for _ in range(3):
                await other.claim(owner(), LEASE)
                await put(other, f"more {uuid4()}", group=group)  # noqa: B023 - it ends within the round

        claims = [asyncio.create_task(claim_often(other)) for other in inboxes[1:]]
        receipt = await inbox.enqueue(
            "t", "y", source="s", message_id=f"{number} newer", group=group, collapse_key=group
        )
        await asyncio.gather(*claims)
        if receipt.superseded != (older.id,):
            missed.append(number)
        await inbox.claim(worker, LEASE, 1000)
    assert missed == []
