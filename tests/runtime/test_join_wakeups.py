"""A worker does not wait for its next poll when a verb or a handler of its process ends a join."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroom import JoinId, Message, NewMessage, Outbox, Postroom
from tests.runtime.support import HOUR

NEVER = timedelta(hours=1)


@pytest.fixture
def box(room: Postroom) -> Outbox:
    return room.outbox(poll_interval=NEVER, max_poll_interval=NEVER)


async def wait_last(box: Outbox) -> JoinId:
    join = await box.start_join("acme")
    await box.seal_join(join)
    await asyncio.sleep(0.05)  # the worker sleeps
    await box.enqueue_join_wait(join, on_complete_topic="next")
    return join


async def seal_last(box: Outbox) -> JoinId:
    join = await box.start_join("acme")
    await box.enqueue_join_wait(join, on_complete_topic="next")
    await asyncio.sleep(0.05)
    await box.seal_join(join)
    return join


async def report_last(box: Outbox) -> JoinId:
    join = await box.start_join("acme", 1)
    later = await box.enqueue("later", {}, due=datetime.now(UTC) + HOUR, join=join)
    await box.enqueue_join_wait(join, on_complete_topic="next")
    await asyncio.sleep(0.05)
    await box.report_step_completed(join, later)
    return join


async def attach_last(box: Outbox) -> JoinId:
    join = await box.start_join("acme", 1)
    other = await box.start_join("acme", 1)
    ended = await box.enqueue("later", {}, due=datetime.now(UTC) + HOUR, join=other)
    await box.cancel(ended)
    await box.enqueue_join_wait(join, fail_if_any_step_failed=False, on_complete_topic="next")
    await asyncio.sleep(0.05)
    await box.attach_message_to_join(join, ended)
    return join


@pytest.mark.parametrize("end", [wait_last, seal_last, report_last, attach_last])
async def test_by_the_verb_that_comes_last(
    room: Postroom, box: Outbox, end: Callable[[Outbox], Awaitable[JoinId]]
) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    @box.handler("next")
    async def handle(message: Message[Any]) -> None:
        handled.put_nowait(message.message_id)

    async with room, asyncio.timeout(10):
        join = await end(box)
        assert await handled.get() == str(join)


@pytest.mark.parametrize("seconds", [0, 0.3])
async def test_by_the_last_step(room: Postroom, box: Outbox, seconds: float) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    @box.handler("step")
    async def step(message: Message[Any]) -> None:
        await asyncio.sleep(seconds)

    @box.handler("next")
    async def handle(message: Message[Any]) -> None:
        handled.put_nowait(message.message_id)

    async with room, asyncio.timeout(10):
        join = await box.start_join("acme", 3)
        await box.enqueue_join_wait(join, on_complete_topic="next")
        await box.enqueue_many([NewMessage("step", {}) for _ in range(3)], join=join)
        assert await handled.get() == str(join)


async def test_a_join_that_waits_for_its_deadline_keeps_nothing_from_a_worker(room: Postroom) -> None:
    """Each claim looks at the join, and learns of the deadline."""
    box = room.outbox(poll_interval=NEVER, max_poll_interval=NEVER)
    handled: asyncio.Queue[str] = asyncio.Queue()

    @box.handler("plain")
    @box.handler("too late")
    async def handle(message: Message[Any]) -> None:
        handled.put_nowait(message.topic)

    async def wait_until(deadline: datetime) -> None:
        join = await box.start_join("acme", 1, deadline=deadline)
        await box.enqueue("later", {}, due=datetime.now(UTC) + HOUR, join=join)
        await box.enqueue_join_wait(join, on_fail_topic="too late")

    async with room, asyncio.timeout(20):
        await wait_until(datetime.now(UTC) + HOUR)
        for _ in range(2):
            await box.enqueue("plain", {})
            assert await handled.get() == "plain"
        await wait_until(datetime.now(UTC) + timedelta(seconds=0.3))
        assert await handled.get() == "too late"
        assert await room.is_ready()
