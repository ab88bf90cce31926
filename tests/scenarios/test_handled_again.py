"""A handler that outlasts its lease is called once, where no other worker takes its message."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from postroom import Message, Postroom, State
from tests.scenarios.support import SOON, becomes, put

OPTIONS: Any = {"lease_seconds": 0.2, "poll_interval": SOON, "max_poll_interval": SOON}
LONGER = 0.3
"""Seconds that a handler takes."""
ENOUGH = 2
"""Calls after which a handler is quick, so that a test which fails ends soon."""


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_lease_that_is_not_renewed(room: Postroom, *, order: Any) -> None:
    inbox = room.inbox(order=order, lease_renewal=False, **OPTIONS)
    calls: list[str] = []

    @inbox.handler("t")
    async def handle(message: Message[str]) -> None:
        calls.append(message.message_id)
        if len(calls) < ENOUGH:
            await asyncio.sleep(LONGER)

    await put(inbox, 1, group="g")
    await room.start()
    assert await becomes(inbox, 1, State.DONE, seconds=4), f"not done after {len(calls)} calls"
    assert calls == ["1"]


@pytest.mark.parametrize("renews", [True, False], ids=["renews", "no renewal"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_handler_that_blocks_the_event_loop(room: Postroom, *, order: Any, renews: bool) -> None:
    """It does so again and again: each time it may lose a race between a renewal and the next claim."""
    inbox = room.inbox(order=order, lease_renewal=renews, **{**OPTIONS, "lease_seconds": 0.05})
    calls: list[str] = []

    @inbox.handler("t")
    async def handle(message: Message[str]) -> None:
        calls.append(message.message_id)
        for _ in range(8 if len(calls) < ENOUGH else 0):
            time.sleep(0.08)  # noqa: ASYNC251 - this is what the test is about
            await asyncio.sleep(0.05)

    await put(inbox, 1, group="g")
    await room.start()
    assert await becomes(inbox, 1, State.DONE, seconds=4), f"not done after {len(calls)} calls"
    assert calls == ["1"]


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_messages_behind_a_handler_that_outlasts_their_lease(room: Postroom, *, order: Any) -> None:
    """They are claimed together with the first, and wait in hand while it is handled."""
    inbox = room.inbox(order=order, lease_renewal=False, **OPTIONS)
    calls: list[str] = []

    @inbox.handler("t")
    async def handle(message: Message[str]) -> None:
        calls.append(message.message_id)
        if message.message_id == "1" and calls.count("1") < ENOUGH:
            await asyncio.sleep(LONGER)

    await put(inbox, 1, 2, 3, group="g")
    await room.start()
    assert await becomes(inbox, 3, State.DONE, seconds=3), f"not done after {calls}"
    assert await becomes(inbox, 1, State.DONE, seconds=1), f"not done after {calls}"
    assert sorted(calls) == ["1", "2", "3"]
