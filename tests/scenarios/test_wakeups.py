"""A worker does not wait for its next poll when another process writes: PostgreSQL notifies it, and so does Redis."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroom import Message
from tests.scenarios.conftest import OpenRoom
from tests.scenarios.support import put

NEVER = timedelta(hours=1)


@pytest.mark.req("C-48")
@pytest.mark.parametrize("store", ["asyncpg", "psycopg", "redis"])
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_what_another_room_writes_is_handled_at_once(open_room: OpenRoom, kind: str) -> None:
    worker, writer = await open_room(), await open_room()
    box: Any = getattr(worker, kind)(poll_interval=NEVER, max_poll_interval=NEVER)
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: Message[Any]) -> None:
        handled.put_nowait(message.message_id)

    box.handler("t")(handle)
    await put(getattr(writer, kind)(), "first")
    await worker.start()
    async with asyncio.timeout(10):
        assert await handled.get() == "first"
        for number in range(3):  # from now on it sleeps between messages
            await put(getattr(writer, kind)(), number)
            assert await handled.get() == str(number)
    await worker.stop()
