"""A slow topic with a limit of its own leaves the other slots of a worker to other topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Message, NewMessage, Postroom
from tests.scenarios.support import SOON

SLOW, FAST = 300, 20


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_fast_topic_behind_many_slow_messages(room: Postroom, *, order: Any) -> None:
    inbox = room.inbox(order=order, concurrency=10, poll_interval=SOON, max_poll_interval=SOON)
    over, all_fast = asyncio.Event(), asyncio.Event()
    slow: list[str] = []
    fast: set[str] = set()

    @inbox.handler("slow", concurrency=1)
    async def handle_slow(message: Message[str]) -> None:
        slow.append(message.message_id)
        await over.wait()

    @inbox.handler("fast")
    async def handle_fast(message: Message[str]) -> None:
        fast.add(message.message_id)
        if len(fast) == FAST:
            all_fast.set()

    for topic, count in (("slow", SLOW), ("fast", FAST)):
        names = [f"{topic} {number}" for number in range(count)]
        await inbox.enqueue_many([NewMessage(topic, "x", source="s", message_id=name, group=name) for name in names])
    await room.start()
    try:
        async with asyncio.timeout(2):
            await all_fast.wait()
    except TimeoutError:
        pytest.fail(f"{len(fast)} of {FAST} fast messages were handled beside {len(slow)} slow ones")
    else:
        assert len(slow) == 1
    finally:
        over.set()
