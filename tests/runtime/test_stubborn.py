"""Handlers that will not end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroom import Postroom, State
from postroom._runtime import pump
from tests.runtime.conftest import OpenRoom


async def test_a_handler_that_will_not_end_does_not_hold_up_the_stop(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "CANCEL_SECONDS", 0.01)
    room: Postroom = await open_room(shutdown_timeout=timedelta(0))
    inbox, entered, free = room.inbox(), asyncio.Event(), asyncio.Event()

    @inbox.handler("t")
    async def stubborn(message: Any) -> None:
        entered.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    await inbox.enqueue("t", "p", source="s", message_id="1")
    await room.start()
    await entered.wait()
    async with asyncio.timeout(10):
        await room.stop()
    free.set()
    message = await inbox.get("1")
    assert (message.state, message.attempt) == (State.WAITING, 0)
