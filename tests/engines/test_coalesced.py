"""Concurrent puts share transactions, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroom import BeginStatus, Postroom, State
from postroom._stores import coalesced
from postroom._stores.coalesced import MAX_CONTENT, SIZES, CoalescedStore, Coalescer, Items
from postroom._stores.wrapper import find_wrapper
from postroom.spi import Box, Draft, ReceiptStatus

BOX = Box("inbox", "inbox")
BAD = Draft("s", "bad", "t", [])  # type: ignore[arg-type] # refused by the database only


class CountingRoom(Postroom):
    """Counts the transactions that puts take."""

    def count(self) -> int:
        return self._transactions

    def __init__(self, url: str) -> None:
        super().__init__(url, deploy_schema=True)
        self._transactions = 0
        for verb in SIZES:
            getattr(self.store, verb)  # the first use makes its coalescer
            self._count_calls(find_wrapper(self.store, CoalescedStore).coalescers[verb].get())

    def _count_calls(self, coalescer: Coalescer) -> None:
        call = coalescer._call

        async def counted(box: Box, items: Items) -> Items:
            self._transactions += 1
            return await call(box, items)

        coalescer._call = counted


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[CountingRoom]:
    async with CountingRoom(f"sqlite:///{tmp_path}/room.db") as room:
        yield room


async def test_a_lone_put_is_a_transaction_of_its_own(room: CountingRoom) -> None:
    for number in range(3):
        await room.inbox().enqueue("t", "p", source="s", message_id=str(number))
    assert room.count() == 3


async def test_concurrent_puts_share_transactions(room: CountingRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first put starts alone; those that come while it runs share the next transaction, and so on."""
    monkeypatch.setattr(coalesced, "OVERTAKE_SECONDS", 60)  # on a busy machine the first put may take long
    receipts = await asyncio.gather(
        *(room.inbox().enqueue("t", n, source="s", message_id=str(n % 50)) for n in range(100))
    )
    assert 2 <= room.count() <= 5  # by when the first transaction ends; without sharing there are 100
    assert sum(receipt.is_new for receipt in receipts) == 50
    assert [receipt.message_id for receipt in receipts] == [str(n % 50) for n in range(100)]
    assert (await room.inbox().counts())[State.WAITING] == 50


async def test_concurrent_begins_and_settles_share_transactions(
    room: CountingRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalesced, "OVERTAKE_SECONDS", 60)
    guard = room.guard("billing")
    begun = await asyncio.gather(*(guard.try_begin(str(n % 50)) for n in range(100)))
    assert room.count() <= 5
    acquired = [each for each in begun if each.status is BeginStatus.ACQUIRED]
    assert len(acquired) == 50
    assert {each.status for each in begun} == {BeginStatus.ACQUIRED, BeginStatus.BUSY}
    before = room.count()
    kept = await asyncio.gather(*(guard.mark_processed(each, result=n) for n, each in enumerate(acquired)))
    assert all(kept)
    assert room.count() - before <= 5
    again = await asyncio.gather(*(guard.try_begin(str(n)) for n in range(50)))
    assert [each.result for each in again] == list(range(50))


async def test_boxes_do_not_mix(room: CountingRoom) -> None:
    await asyncio.gather(*(room.inbox(str(n % 2)).enqueue("t", n, source="s", message_id=str(n)) for n in range(20)))
    assert [m.payload for m in await room.inbox("0").find()] == list(range(0, 20, 2))
    assert [m.payload for m in await room.inbox("1").find()] == list(range(1, 20, 2))


async def test_one_callers_error_stays_its_own(room: CountingRoom) -> None:
    drafts = [Draft("s", str(n), "t", "p") for n in range(5)]
    results: list[Any] = await asyncio.gather(
        *(room.store.put(BOX, [draft]) for draft in (*drafts[:3], BAD, *drafts[3:])), return_exceptions=True
    )
    assert isinstance(results[3], sqlite3.Error)
    assert all(result[0].status is ReceiptStatus.NEW for result in results[:3] + results[4:])
    assert (await room.inbox().counts())[State.WAITING] == 5


async def test_a_cancelled_caller_does_not_stop_the_others(room: CountingRoom) -> None:
    tasks = [asyncio.create_task(room.inbox().enqueue("t", n, source="s", message_id=str(n))) for n in range(10)]
    await asyncio.sleep(0)
    tasks[4].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[4], asyncio.CancelledError)
    assert sum(getattr(result, "is_new", False) for result in results) == 9


async def test_large_contents_go_apart(room: CountingRoom) -> None:
    """A server has a limit for what it takes at once."""
    drafts = [Draft("s", str(number), "t", "x" * (MAX_CONTENT // 3)) for number in range(7)]
    await asyncio.gather(*(room.store.put(BOX, [draft]) for draft in drafts))
    assert room.count() == 3  # never more than three together; the first goes alone or with them


async def test_many_drafts_are_cut_into_fair_pieces(room: CountingRoom) -> None:
    batches = [[Draft("s", f"{b}-{n}", "t", "p") for n in range(600)] for b in range(3)]
    results = await asyncio.gather(*(room.store.put(BOX, batch) for batch in batches))
    assert [len(result) for result in results] == [600, 600, 600]
    assert room.count() == 3
