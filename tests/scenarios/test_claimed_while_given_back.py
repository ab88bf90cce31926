"""A worker claims what it is giving back at the same moment: the claim is new work, and is handled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Message, Outcome, Postroom, State
from tests.scenarios.support import ids, put, states

pytestmark = pytest.mark.parametrize("store", ["asyncpg", "psycopg", "redis"])  # the others make one exchange at a time


class Race:
    """Orders the two calls: a claim that begins before messages are given back, runs after that in the store, and
    returns before the call that gave them back does."""

    def __init__(self, room: Postroom) -> None:
        self.is_on = False
        self.claiming = asyncio.Event()
        self._given_back = asyncio.Event()
        self._received = asyncio.Event()
        self._turn, self._settle = room.store.exchange, room.store.settle
        room.store.exchange, room.store.settle = self.exchange, self.settle

    async def exchange(self, box: Any, outcomes: Any, request: Any) -> Any:
        if self.is_on and not self.claiming.is_set():
            assert outcomes == []
            self.claiming.set()
            async with asyncio.timeout(5):
                await self._given_back.wait()
            result = await self._turn(box, outcomes, request)
            asyncio.get_running_loop().call_soon(self._received.set)  # runs after the worker has got the messages
            return result
        return await self._turn(box, outcomes, request)

    async def settle(self, box: Any, outcomes: Any, **options: Any) -> Any:
        result = await self._settle(box, outcomes, **options)
        if self.is_on and any(outcome.verdict == "release" for outcome in outcomes):
            self.is_on = False
            self._given_back.set()
            async with asyncio.timeout(5):
                await self._received.wait()
        return result


@pytest.mark.parametrize("batch", [None, 5])
async def test_a_group_goes_on_in_order(room: Postroom, batch: int | None) -> None:
    box = room.inbox(order="fifo", batch_size=10)
    race = Race(room)
    handled: list[str] = []
    all_handled = asyncio.Event()

    async def handle(messages: list[Message[Any]]) -> list[Outcome]:
        if ids(messages)[0] == "1":
            race.is_on = True
            await put(box, 6, 7, 8, group="g")  # which wakes the worker: it claims
            await race.claiming.wait()
            return [Outcome.DEAD] * len(messages)  # the rest of the group is given back
        handled.extend(ids(messages))
        if "8" in handled:
            all_handled.set()
        return [Outcome.SUCCESS] * len(messages)

    async def one(message: Message[Any]) -> Outcome:
        return (await handle([message]))[0]

    box.handler("t", batch=batch)(handle if batch else one)
    await put(box, *range(1, 6), group="g")
    async with asyncio.timeout(10):
        await room.start()
        await all_handled.wait()
        await room.stop()
    assert handled == ["2", "3", "4", "5", "6", "7", "8"]
    found = await states(box)
    assert found.pop("1") is State.DEAD
    assert set(found.values()) == {State.DONE}
