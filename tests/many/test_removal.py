"""A store is removed while handlers wait for their transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from postroom import Message, Postroom
from tests.many.conftest import OpenRoom
from tests.many.stores import databases
from tests.runtime.support import soon


async def test_calls_that_have_not_begun_are_released(open_room: OpenRoom, tmp_path: Path) -> None:
    urls = databases("sqlite", tmp_path, ["acme", "bolt"])
    listed = dict(urls)
    room = open_room(discover=lambda: dict(listed))
    begun: list[str] = []
    first, go_on = asyncio.Event(), asyncio.Event()

    @room.inbox(concurrency=8).handler("t", transactional=True)
    async def handle(message: Message[Any], tx: Any) -> None:
        begun.append(message.message_id)
        first.set()
        await go_on.wait()

    await room.refresh()
    for number in range(6):
        await room.router.inbox("acme").enqueue("t", "x", source="s", message_id=str(number))
    async with room:
        await soon(first.wait())
        del listed["acme"]
        await room.refresh()
        go_on.set()
    assert len(begun) == 1
    async with Postroom(urls["acme"]) as alone:
        found = {message.message_id: message for message in await alone.inbox().find()}
        others = [message for key, message in found.items() if key not in begun]
        assert [(message.state.name, message.attempt) for message in others] == [("WAITING", 0)] * 5
