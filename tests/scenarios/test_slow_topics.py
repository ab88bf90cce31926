"""A slow topic with a limit of its own leaves the other slots of a worker to other topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Message, NewMessage, Postroom, State
from tests.scenarios.support import SOON, eventually, put

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


async def test_what_waits_for_a_slow_handler_is_not_delivered_again(room: Postroom) -> None:
    inbox = room.inbox(concurrency=4, max_deliveries=3, lease_seconds=0.3, poll_interval=SOON, max_poll_interval=SOON)

    @inbox.handler("slow", concurrency=1)
    async def handle_slow(message: Message[str]) -> None:
        await asyncio.sleep(0.03)

    inbox.handler("fast")(lambda _: None)
    await put(inbox, *range(40), topic="slow")
    await room.start()

    async def all_have_ended() -> bool:
        counts = await inbox.counts()
        return counts[State.WAITING] + counts[State.CLAIMED] == 0

    assert await eventually(all_have_ended, 6)
    assert (await inbox.counts())[State.DONE] == 40
