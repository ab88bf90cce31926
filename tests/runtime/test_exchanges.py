"""Two exchanges under way, on a store with concurrent writers: what they share, and what they must not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from postroom import Message, NewMessage, Outcome, Postroom, State
from postroom._stores.memory import MemoryStore
from postroom.spi import Box, ClaimRequest, Features, Settlement, StoredMessage
from tests.runtime.support import soon

BATCH = 10


class SlowStore(MemoryStore):
    """A memory store whose exchanges take time and overlap."""

    features = Features(durable=False, transactional=False, concurrent=True)

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(1)
        self.under_way: list[set[str | None]] = []
        """The groups of the outcomes in each exchange."""
        self.hangs = asyncio.Event()
        self.hanging = asyncio.Event()
        self.let_go = asyncio.Event()
        self.groups: dict[int, str | None] = {}

    async def claim(self, box: Box, request: ClaimRequest, *, tx: Any = None) -> list[StoredMessage]:
        claimed = await super().claim(box, request)
        self.groups |= {message.id: message.group for message in claimed}
        return claimed

    async def exchange(
        self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest
    ) -> tuple[list[bool], list[StoredMessage]]:
        mine = {self.groups[item.target.id] for item in settlements} - {None}  # type: ignore[union-attr]
        for theirs in self.under_way:
            assert not mine & theirs, "outcomes of one group in two exchanges"
        self.under_way.append(mine)
        try:
            if self.hangs.is_set():
                self.hangs.clear()
                self.hanging.set()
                await self.let_go.wait()
            for _ in range(self.chance.randrange(10)):
                await asyncio.sleep(0)
            settled = await self.settle(box, settlements)
            messages = await self.claim(box, request)
            for _ in range(self.chance.randrange(10)):
                await asyncio.sleep(0)
            return list(settled), messages
        finally:
            self.under_way.remove(mine)


def messages(groups: int, each: int) -> list[NewMessage]:
    return [
        NewMessage("t", number, source="s", message_id=f"{group}-{number}", group=str(group))
        for number in range(each)
        for group in range(groups)
    ]


@pytest.mark.req("C-46")
async def test_outcomes_of_a_line_do_not_overtake_each_other() -> None:
    store = SlowStore()
    room = Postroom(store=store)
    box = room.inbox(order="fifo", batch_size=BATCH, concurrency=3, max_attempts=100)
    chance = random.Random(2)
    seen: dict[str | None, list[int]] = {}

    @box.handler("t")
    async def handle(message: Message[int]) -> Outcome | None:
        await asyncio.sleep(0)
        if chance.random() < 0.1:
            return Outcome.RETRY
        seen.setdefault(message.group, []).append(message.payload)
        return None

    await box.enqueue_many(messages(15, 20))
    await soon(room.drain())
    assert seen == {str(group): list(range(20)) for group in range(15)}
    await room.close()


@pytest.mark.parametrize("order", [None, "fifo"])
async def test_an_exchange_that_hangs_delays_little(order: Any) -> None:
    """What is handled and not settled stays bounded; and a plain box goes on beside it."""
    store = SlowStore()
    room = Postroom(store=store)
    box = room.inbox(batch_size=BATCH, **({"order": order} if order else {}))
    handled = 0
    half, all_ = asyncio.Event(), asyncio.Event()

    @box.handler("t")
    async def handle(_: Message[int]) -> None:
        nonlocal handled
        handled += 1
        if handled == 500:
            half.set()
        if handled == 1000:
            all_.set()

    await box.enqueue_many(messages(100, 10))
    store.hangs.set()
    await room.start()
    await soon(store.hanging.wait())
    if order is None:
        await soon(half.wait())
    for _ in range(2000):  # every chance to pile up
        await asyncio.sleep(0)
    assert room.health()["inbox:inbox"].in_hand <= 4 * BATCH
    store.let_go.set()
    await soon(all_.wait())
    await room.stop()
    assert (await box.counts())[State.DONE] == 1000
    await room.close()


class JealousStore(SlowStore):
    """A claim finds nothing while another is under way: as where both come to one group, and one has its lock."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming = 0

    async def claim(self, box: Box, request: ClaimRequest, *, tx: Any = None) -> list[StoredMessage]:
        if self.claiming:
            return []
        self.claiming += 1
        try:
            claimed = await super().claim(box, request)
            for _ in range(self.chance.randrange(20)):
                await asyncio.sleep(0)
            return claimed
        finally:
            self.claiming -= 1


@pytest.mark.parametrize("failing", [False, True])
async def test_a_claim_that_was_empty_beside_another_exchange_proves_nothing(failing: bool) -> None:
    """Nothing here waits for a poll."""
    room = Postroom(store=JealousStore())
    hour = timedelta(hours=1)
    box = room.inbox(order="fifo", batch_size=BATCH, poll_interval=hour, max_poll_interval=hour, max_attempts=1000)
    chance = random.Random(3)
    done = 0
    all_ = asyncio.Event()

    @box.handler("t")
    async def handle(_: Message[int]) -> Outcome | None:
        nonlocal done
        if failing and chance.random() < 0.2:
            return Outcome.RETRY
        done += 1
        if done == 500:
            all_.set()
        return None

    await box.enqueue_many(messages(1, 500))
    await room.start()
    await soon(all_.wait())
    await room.close()


class LateStore(SlowStore):
    """A settlement takes longer than a claim that has begun after it."""

    async def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        for _ in range(self.chance.randrange(30)):
            await asyncio.sleep(0)
        return await super().settle(box, settlements)


async def test_a_group_that_is_settled_after_a_claim_has_looked_is_claimed_at_once() -> None:
    room = Postroom(store=LateStore())
    hour = timedelta(hours=1)
    box = room.inbox(order="fifo", batch_size=BATCH, poll_interval=hour, max_poll_interval=hour)
    chance = random.Random(4)
    done = 0
    all_ = asyncio.Event()

    @box.handler("t")
    async def handle(message: Message[int]) -> None:
        nonlocal done
        for _ in range(chance.randrange(6)):  # its outcomes go in several exchanges
            await asyncio.sleep(0)
        done += 1
        if done == 300:
            all_.set()

    await box.enqueue_many(messages(1, 300))
    await room.start()
    await soon(all_.wait())
    await room.close()
