"""A batch that raises is handled again, one message at a time: one bad message ends no other (decision 0011)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Backoff, Message, Outcome, Postroom, State
from postroom.testing import Events, FrozenClock
from tests.scenarios.conftest import OpenRoom
from tests.scenarios.support import POSTGRES, ids, put, states

TRANSACTIONAL = ("aiosqlite", *POSTGRES)
BAD = "3"


class Calls:
    """A batch handler that raises on any batch with the bad message in it."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    async def __call__(self, messages: list[Message[Any]], *_: Any) -> None:
        self.batches.append(ids(messages))
        if BAD in self.batches[-1]:
            raise ValueError("bad")


@pytest.mark.parametrize("group", [None, "g"])
async def test_only_the_bad_message_dies(still: Postroom, clock: FrozenClock, group: str | None) -> None:
    box = still.inbox(order="fifo" if group else "none", max_attempts=3, backoff=Backoff.constant(10))
    calls = Calls()
    box.handler("t", batch=5)(calls)
    await put(box, *range(1, 6), group=group)
    for _ in range(3):
        await still.drain()
        clock.advance(10)
    found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
    assert found == {id_: (State.DEAD, 3) if id_ == BAD else (State.DONE, 0) for id_ in "12345"}


async def test_each_is_handled_alone_and_in_order(still: Postroom) -> None:
    box = still.inbox(backoff=Backoff.constant(10))
    calls = Calls()
    box.handler("t", batch=5)(calls)
    await put(box, *range(1, 6))
    await still.drain()
    assert calls.batches == [["1", "2", "3", "4", "5"], ["1"], ["2"], ["3"], ["4"], ["5"]]
    assert {m.message_id: m.deliveries for m in await box.find()} == dict.fromkeys("12345", 1)


async def test_the_first_failure_ends_a_group(still: Postroom, clock: FrozenClock) -> None:
    box = still.inbox(order="fifo", backoff=Backoff.constant(10), max_attempts=2)
    calls = Calls()
    box.handler("t", batch=5)(calls)
    await put(box, *range(1, 6), group="g")
    await still.drain()
    assert calls.batches == [["1", "2", "3", "4", "5"], ["1"], ["2"], ["3"]]
    assert {m.message_id: m.attempt for m in await box.find()} == {"1": 0, "2": 0, "3": 1, "4": 0, "5": 0}
    clock.advance(10)
    await still.drain()
    assert calls.batches[4:] == [["3", "4", "5"], ["3"], ["4", "5"]]
    assert await states(box) == {id_: State.DEAD if id_ == BAD else State.DONE for id_ in "12345"}


async def test_a_batch_of_one_counts_at_once(still: Postroom) -> None:
    box = still.inbox(backoff=Backoff.constant(10))
    calls = Calls()
    box.handler("t", batch=5)(calls)
    await put(box, BAD)
    await still.drain()
    assert calls.batches == [[BAD]]
    assert (await box.get(BAD)).attempt == 1


async def test_outcomes_that_are_returned_are_not_asked_for_again(still: Postroom) -> None:
    box = still.inbox(backoff=Backoff.constant(10))
    batches: list[list[str]] = []

    @box.handler("t", batch=5)
    async def handle(messages: list[Message[Any]]) -> Outcome:
        batches.append(ids(messages))
        return Outcome.FAILED

    await put(box, 1, 2)
    await still.drain()
    assert batches == [["1", "2"]]
    assert {m.message_id: m.attempt for m in await box.find()} == {"1": 1, "2": 1}


@pytest.mark.parametrize("store", TRANSACTIONAL)
@pytest.mark.parametrize("group", [None, "g"])
async def test_in_transactions(still: Postroom, clock: FrozenClock, group: str | None) -> None:
    """The batch is rolled back; then each message has its own transaction."""
    box, outbox = still.inbox(order="fifo" if group else "none", max_attempts=2), still.outbox()
    calls = Calls()

    @box.handler("t", batch=5, transactional=True)
    async def handle(messages: list[Message[Any]], tx: Any) -> None:
        for message in messages:
            await outbox.enqueue("sent", "x", message_id=f"{message.message_id}", tx=tx)
        await calls(messages)

    await put(box, *range(1, 6), group=group)
    await still.drain()
    clock.advance(100)
    await still.drain()
    assert await states(box) == {id_: State.DEAD if id_ == BAD else State.DONE for id_ in "12345"}
    assert sorted(ids(await outbox.find())) == ["1", "2", "4", "5"]
    assert calls.batches[0] == ["1", "2", "3", "4", "5"]


async def test_a_stop_gives_the_rest_back(open_room: OpenRoom, events: Events) -> None:
    room = await open_room(observers=[events])
    box = room.inbox()
    alone, may_end = asyncio.Event(), asyncio.Event()
    batches: list[list[str]] = []

    @box.handler("t", batch=5)
    async def handle(messages: list[Message[Any]]) -> None:
        batches.append(ids(messages))
        if len(messages) > 1:
            raise ValueError("bad")
        alone.set()
        await may_end.wait()

    await put(box, 1, 2, 3)
    await room.start()
    async with asyncio.timeout(10):
        await alone.wait()
    stopping = asyncio.create_task(room.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the stop has reached the worker
    may_end.set()
    await stopping
    assert batches == [["1", "2", "3"], ["1"]]
    found = {m.message_id: (m.state, m.attempt) for m in await box.find()}
    assert found == {"1": (State.DONE, 0), "2": (State.WAITING, 0), "3": (State.WAITING, 0)}


async def test_observers_see_the_batch_that_raised(still: Postroom, events: Events) -> None:
    box = still.inbox(backoff=Backoff.constant(10))
    box.handler("t", batch=5)(Calls())
    await put(box, 2, 3)
    await still.drain()
    batch, second, third = events.of("handle")
    assert (ids(batch.given), batch.result, type(batch.error)) == (["2", "3"], None, ValueError)
    assert [outcome.result for outcome in (*second.result, *third.result)] == ["success", "failed"]
