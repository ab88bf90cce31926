"""A driver may drop a cancellation, as `asyncio.wait_for` of Python 3.11 does: a room stops all the same."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroom import Cleaning, Message, Postroom
from postroom._kernel.texts import ErrorTexts
from postroom._runtime import service
from postroom._runtime.service import Service


def dropping(verb: Any, is_in: asyncio.Event) -> Any:
    """A verb that takes a while, and drops the cancellation that comes meanwhile."""

    async def call(*args: Any, **options: Any) -> Any:
        is_in.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return await verb(*args, **options)

    return call


async def test_a_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CANCEL_AGAIN_SECONDS", 0.01)
    is_in = asyncio.Event()

    async def nothing() -> None: ...

    async def duty() -> None:
        await dropping(nothing, is_in)()
        await asyncio.sleep(3600)

    running = Service("stubborn", duty, errors=ErrorTexts())
    running.start()
    await is_in.wait()
    async with asyncio.timeout(5):
        await running.cancel()
    assert not running.is_running


@pytest.mark.parametrize("verb", ["reap", "renew"])
async def test_a_room_stops(verb: str) -> None:
    soon = timedelta(milliseconds=5)
    room = Postroom("memory://", cleaning=Cleaning(reap_interval=soon), shutdown_timeout=timedelta(0))
    box = room.inbox(lease_seconds=0.02)
    is_in = asyncio.Event()
    setattr(room.store, verb, dropping(getattr(room.store, verb), is_in))

    @box.handler("t")
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(3600)

    await box.enqueue("t", "x", source="s", message_id="1")
    await room.start()
    await is_in.wait()
    async with asyncio.timeout(4):  # a lost cancellation is repeated only after 10 seconds
        await room.close()
