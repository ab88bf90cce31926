"""A caller's transaction stays open for a while: no worker waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from postroom import NewMessage, Postroom
from tests.postgres import clean_database

LONG = 20.0
"""Seconds: who waits so long waits for the end of the transaction, which does not come before."""
LATER = datetime(2100, 1, 1, tzinfo=UTC)

Do = Callable[[Any, Any], Any]
WHAT: dict[str, Do] = {
    "a new message": lambda box, tx: box.enqueue("t", 9, source="s", message_id="9", group="g", tx=tx),
    "the claimed one again": lambda box, tx: box.enqueue("t", 9, source="s", message_id="1", group="g", tx=tx),
    "the next one again": lambda box, tx: box.enqueue("t", 9, source="s", message_id="2", group="g", tx=tx),
    "a look at the claimed one": lambda box, tx: box.already_processed("1", "s", tx=tx),
    "a look at the next one": lambda box, tx: box.already_processed("2", "s", tx=tx),
    "many, some of them known": lambda box, tx: box.enqueue_many(
        [NewMessage("t", 9, "s", id_, group="g") for id_ in ("1", "2", "8", "9")], tx=tx
    ),
}


@pytest.fixture
async def caller() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(clean_database())
    yield connection
    await connection.close()


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_workers_and_other_callers_do_not_wait(caller: Any, what: str, ending: str) -> None:
    async with Postroom(clean_database()) as room:
        box, owner = room.inbox("open", order="fifo"), uuid4()
        await box.enqueue_many([NewMessage("t", n, "s", str(n), group="g") for n in (1, 2, 3)])
        await box.enqueue("t", 5, source="s", message_id="5", group="other")
        [first] = await box.claim(owner, 60, 1)
        transaction = caller.transaction()
        await transaction.start()
        await WHAT[what](box, caller)
        async with asyncio.timeout(LONG):
            assert await box.renew(owner, [first]) == [True]
            assert [message.message_id for message in await box.claim(owner, 60, 1)] == ["5"]
            assert (await box.enqueue("t", 7, source="s", message_id="7", group="g")).is_new
            assert await box.ack(owner, [first]) == [True]
        await getattr(transaction, ending)()
        # No message was missed meanwhile.
        ids: list[str] = []
        async with asyncio.timeout(LONG):
            while claimed := await box.claim(owner, 60, 10):
                ids += [message.message_id for message in claimed]
                assert all(await box.ack(owner, claimed))
        assert ids[:1] == ["2"]
        assert {"3", "7"} <= set(ids)


async def test_a_due_time_that_comes_late_does_not_move_a_lease(caller: Any) -> None:
    async with Postroom(clean_database()) as room:
        box, owner = room.inbox("lease"), uuid4()
        await box.enqueue("t", 1, source="s", message_id="1")
        transaction = caller.transaction()
        await transaction.start()
        await box.enqueue("t", 1, source="s", message_id="1", due=LATER, tx=caller)
        async with asyncio.timeout(LONG):
            claims: list[Any] = await box.claim(owner, 0.05, 1)
        await transaction.commit()
        again: list[Any] = []
        async with asyncio.timeout(LONG):
            while claims and not again:  # when its lease has ended, and not only in 2100
                again = await box.claim(owner)
        assert [message.id for message in again] == [message.id for message in claims]
