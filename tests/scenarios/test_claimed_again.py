"""A worker that claims what it has in hand goes on with it, and its outcome counts."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from postroom import Cleaning, Postroom, State
from postroom._runtime.pump import Pump
from tests.scenarios.conftest import OpenRoom
from tests.scenarios.support import SOON, becomes, eventually, put

OPTIONS: Any = {"lease_seconds": 0.2, "poll_interval": SOON, "max_poll_interval": SOON}


@pytest.mark.parametrize("renews", [True, False], ids=["renews", "no renewal"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_an_outcome_that_was_there_before_the_newer_claim(
    room: Postroom, monkeypatch: pytest.MonkeyPatch, *, order: Any, renews: bool
) -> None:
    """A claim takes 50 ms to reach the store; meanwhile a handler blocks the event loop for longer than the lease."""
    exchange = Pump._exchange

    async def slow_exchange(pump: Pump, outcomes: Any, limit: int) -> Any:
        if not limit:
            return await exchange(pump, outcomes, limit)
        doubtful = pump._doubtful(asyncio.get_running_loop().time())  # as the pump sees it when it sends the claim
        monkeypatch.setattr(pump, "_doubtful", lambda _now: doubtful)
        try:
            await asyncio.sleep(0.05)
            return await exchange(pump, outcomes, limit)
        finally:
            monkeypatch.delattr(pump, "_doubtful")

    monkeypatch.setattr(Pump, "_exchange", slow_exchange)
    inbox = room.inbox(order=order, batch_size=4, lease_renewal=renews, **OPTIONS)
    calls: list[str] = []

    @inbox.handler("t")
    async def handle(message: Any) -> None:
        calls.append(message.message_id)
        await asyncio.sleep(0.03)
        if message.message_id == "2":
            time.sleep(0.4)  # noqa: ASYNC251 - this is what the test is about

    await put(inbox, 1, 2, 3, 4, group="g")
    await room.start()

    async def all_are_done() -> bool:
        return (await inbox.counts())[State.DONE] == 4

    assert await eventually(all_are_done, 5), f"calls {calls}, {room.health()}"


async def test_the_janitor_of_its_room_does_not_undo_a_late_success(open_room: OpenRoom) -> None:
    room = await open_room(cleaning=Cleaning(reap_interval=timedelta(milliseconds=50)))
    inbox = room.inbox(lease_renewal=False, **OPTIONS)
    calls: list[str] = []

    @inbox.handler("t")
    async def handle(message: Any) -> None:
        calls.append(message.message_id)
        await asyncio.sleep(0.45)

    await put(inbox, 1)
    await room.start()
    assert await becomes(inbox, 1, State.DONE, State.DEAD, seconds=8)
    assert (calls, (await inbox.get("1")).state) == (["1"], State.DONE)
