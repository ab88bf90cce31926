"""Strict order under fire: many groups, random failures, retries, two workers on one database."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections import defaultdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from postroom import Backoff, Message, NewMessage, Outcome, Postroom, State
from postroom.testing import Events
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import SOON

GROUPS, LENGTH = 50, 200 if os.environ.get("POSTROOM_CHAOS") else 80


def messages(groups: int, length: int) -> list[NewMessage]:
    return [
        NewMessage("t", number, source="s", message_id=f"{group}-{number}", group=str(group))
        for number in range(length)
        for group in range(groups)
    ]


def random_outcome(chance: random.Random) -> Outcome | None:
    """Mostly success; sometimes what is not, or an exception."""
    number = chance.random()
    if number < 0.01:
        raise ConnectionError("the weather")
    if number < 0.02:
        return Outcome.FAILED
    if number < 0.03:
        return Outcome.RETRY
    return Outcome.RETRY.after(SOON) if number < 0.035 else None


def box_of(room: Postroom, *, batch_size: int = 50, concurrency: int = 4) -> Any:
    return room.inbox(
        order="fifo",
        max_attempts=1000,
        backoff=Backoff.constant(0.002),
        batch_size=batch_size,
        concurrency=concurrency,
        poll_interval=SOON,
        max_poll_interval=4 * SOON,
    )


async def work_off(rooms: list[Postroom], events: Events, total: int) -> list[int]:
    """Runs all rooms until every message is done. Returns how many messages each has claimed."""
    try:
        await asyncio.gather(*(room.start() for room in rooms))
        async with asyncio.timeout(60):
            while (await rooms[0].inbox().counts())[State.DONE] < total:
                await events.wait("claim", count=len(events.of("claim")) + 5, seconds=60)
        return [room.health()["inbox:inbox"].claimed for room in rooms]
    finally:
        for room in rooms:
            await room.stop()


@pytest.mark.req("RHI-017", "RHI-018", "RHI-141", "C-46", "IBX-078")
async def test_effects_of_each_group_are_in_order_and_nothing_is_twice(tmp_path: Path, events: Events) -> None:
    """Transactional: what the ledger says has happened, once and in order."""
    path = f"{tmp_path}/room.db"
    rooms = [Postroom(f"sqlite:///{path}", observers=[events]) for _ in range(2)]
    await rooms[0].migrate()
    ledger = sqlite3.connect(path)
    ledger.execute("CREATE TABLE ledger (position INTEGER PRIMARY KEY, line INTEGER, number INTEGER)")
    chance = random.Random(1)

    async def handle(given: list[Message[int]], tx: aiosqlite.Connection) -> list[Outcome | None]:
        outcomes = []
        for message in given:
            await tx.execute("INSERT INTO ledger (line, number) VALUES (?, ?)", [message.group, message.payload])
            outcomes.append(random_outcome(chance))
        return outcomes

    for room in rooms:
        box_of(room).handler("t", batch=20, transactional=True)(handle)
    await rooms[0].inbox().enqueue_many(messages(GROUPS, LENGTH))
    claimed = await work_off(rooms, events, GROUPS * LENGTH)
    for room in rooms:
        await room.close()
    lines = defaultdict(list)
    for line, number in ledger.execute("SELECT line, number FROM ledger ORDER BY position"):
        lines[line].append(number)
    ledger.close()
    assert lines == {group: list(range(LENGTH)) for group in range(GROUPS)}
    assert min(claimed) > 0  # both took part


@pytest.mark.req("RHI-017", "RHI-141", "C-46")
@pytest.mark.parametrize("batch", [None, 5])
async def test_without_transactions_too(open_room: OpenRoom, events: Events, batch: int | None) -> None:
    """While no lease is lost, ordinary handlers succeed in order, each message once."""
    rooms = [await open_room(observers=[events]) for _ in range(2)]
    lines: dict[str, list[int]] = defaultdict(list)
    chance = random.Random(1)

    async def handle(given: Any) -> Any:
        await asyncio.sleep(0)
        batch = given if isinstance(given, list) else [given]
        outcomes = [random_outcome(chance) for _ in batch]
        good = takewhile(lambda pair: pair[1] is None, zip(batch, outcomes, strict=True))
        for message, _ in good:
            lines[message.group].append(message.payload)
        return outcomes if isinstance(given, list) else outcomes[0]

    for room in rooms:
        box_of(room, batch_size=10).handler("t", batch=batch)(handle)
    await rooms[0].inbox().enqueue_many(messages(20, 40))
    claimed = await work_off(rooms, events, 800)
    assert lines == {str(group): list(range(40)) for group in range(20)}
    assert sum(claimed) >= 800  # how much of it each had, is up to SQLite's lock


async def test_a_failure_ends_its_own_group_only(open_room: OpenRoom) -> None:
    room = await open_room()
    box = box_of(room, concurrency=1)
    handled: list[str] = []

    async def handle(message: Message[int]) -> Outcome | None:
        first = message.message_id not in handled
        handled.append(message.message_id)
        return Outcome.FAILED if message.message_id == "1-1" and first else None

    box.handler("t")(handle)
    await box.enqueue_many(messages(3, 3))
    async with asyncio.timeout(60):
        while (await box.counts())[State.DONE] < 9:
            await room.drain()
    assert handled[:6] == ["0-0", "0-1", "0-2", "1-0", "1-1", "2-0"], "who follows a failure was not tried, others were"
    assert handled[6:] == ["2-1", "2-2", "1-1", "1-2"]
    attempts = {message.message_id: message.attempt for message in await box.find()}
    assert attempts == {**dict.fromkeys(attempts, 0), "1-1": 1}
