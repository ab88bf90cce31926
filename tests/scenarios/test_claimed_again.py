"""A worker that claims what it has in hand goes on with it, and its outcome counts."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from postroom import Cleaning, Postroom, State
from postroom._runtime.exchange import Exchanges
from postroom._runtime.in_hand import InHand
from postroom.testing import Events
from tests.scenarios.conftest import OpenRoom
from tests.scenarios.support import SOON, becomes, eventually, put

OPTIONS: Any = {"lease_seconds": 0.2, "poll_interval": SOON, "max_poll_interval": SOON}


@pytest.mark.parametrize("renews", [True, False], ids=["renews", "no renewal"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_an_outcome_that_was_there_before_the_newer_claim(
    room: Postroom, monkeypatch: pytest.MonkeyPatch, *, order: Any, renews: bool
) -> None:
    """A claim takes 50 ms to reach the store; meanwhile a handler blocks the event loop for longer than the lease."""
    call_store = Exchanges._call_store

    async def slow_call(exchanges: Exchanges, outcomes: Any, limit: int) -> Any:
        if not limit:
            return await call_store(exchanges, outcomes, limit)
        in_hand = exchanges._in_hand
        excluded = in_hand.may_have_expired(asyncio.get_running_loop().time())  # when the worker sends the claim
        monkeypatch.setattr(in_hand, "may_have_expired", lambda _now: excluded)
        try:
            await asyncio.sleep(0.05)
            return await call_store(exchanges, outcomes, limit)
        finally:
            monkeypatch.delattr(in_hand, "may_have_expired")

    monkeypatch.setattr(Exchanges, "_call_store", slow_call)
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


async def test_nothing_overtakes_a_message_that_its_worker_claims_again(open_room: OpenRoom) -> None:
    """A claim is sent before a lease may have ended and reaches the store after that: it returns the message that the
    worker still handles, and the next one of its group."""
    events = Events()
    room = await open_room(observers=[events])
    inbox = room.inbox(order="fifo", concurrency=2, lease_renewal=False, **OPTIONS)
    begun: list[str] = []
    may_end = asyncio.Event()

    @inbox.handler("t")
    async def handle(message: Any) -> None:
        begun.append(message.message_id)
        await may_end.wait()

    await put(inbox, 1, group="g")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InHand, "may_have_expired", lambda _self, _now: ())
        await room.start()
        await events.wait("claim", lambda event: bool(event.result))
        await put(inbox, 2, group="g")
        both = await events.wait("claim", lambda event: len(event.result or ()) == 2)
        released = await events.wait("settle", lambda event: "release" in {each.verdict for each in event.given})
    assert [message.message_id for message in both.result] == ["1", "2"]
    assert (begun, len(released.given)) == (["1"], 1)
    may_end.set()
    assert await becomes(inbox, 2, State.DONE, seconds=8)
    assert begun == ["1", "2"]
