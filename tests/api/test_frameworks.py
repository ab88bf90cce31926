"""Frameworks that are given a verb, and decide by themselves how to call it."""

from __future__ import annotations

import httpx
from fastapi import BackgroundTasks, FastAPI

from postroom import Postroom
from postroom.testing import assert_enqueued


async def test_a_background_task_of_fastapi_enqueues() -> None:
    """Of a plain function FastAPI does not await the result: it would return 200, and drop the message."""
    app, room = FastAPI(), Postroom("memory://")
    outbox = room.outbox()

    @app.post("/orders")
    async def place(tasks: BackgroundTasks) -> None:
        tasks.add_task(outbox.enqueue, "order.placed", {"order": 1})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        assert (await client.post("/orders")).status_code == 200
    await assert_enqueued(outbox, "order.placed", {"order": 1}, count=1)
    await room.close()
