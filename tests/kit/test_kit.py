"""The kit for users' tests."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from postroom import Outcome, Postroom
from postroom import sync as postroom_sync
from postroom.testing import Events, FrozenClock, assert_enqueued, assert_not_enqueued


async def test_events_can_be_waited_for() -> None:
    events = Events()
    async with Postroom("memory://", observers=[events]) as room:
        waiting = asyncio.create_task(events.wait("put", lambda event: event.box.name == "mail", count=2))
        for name in ("mail", "other", "mail"):
            await room.outbox(name).enqueue("t", name)
        event = await waiting
        assert event.result[0].is_new
        assert event is events.of("put")[2]
        with pytest.raises(TimeoutError):
            await events.wait("purge", seconds=0.001)


async def test_assert_enqueued(tmp_path: Path) -> None:
    async with Postroom("memory://") as room:
        outbox = room.outbox()
        await outbox.enqueue("mail", {"to": "a"}, correlation_id="1")
        await outbox.enqueue("mail", {"to": "b"})
        [found] = await assert_enqueued(outbox, "mail", {"to": "a"}, correlation_id="1", count=1)
        assert found.correlation_id == "1"
        assert len(await assert_enqueued(outbox, "mail")) == 2
        await assert_not_enqueued(outbox, "mail", {"to": "c"})
        with pytest.raises(AssertionError, match="wanted one"):
            await assert_enqueued(outbox, "mail", {"to": "c"})
        with pytest.raises(AssertionError, match="found 1 of 2"):
            await assert_not_enqueued(outbox, "mail", {"to": "a"})
    with postroom_sync.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as sync_room:
        sync_room.outbox().enqueue("mail", "x")
        await assert_enqueued(sync_room.outbox(), "mail", "x")


@pytest.mark.req("RHI-052")
@pytest.mark.store("memory")
async def test_a_frozen_clock_moves_when_told() -> None:
    clock = FrozenClock()
    async with Postroom("memory://", clock=clock) as room:
        outbox, handled = room.outbox(), list[str]()

        @outbox.handler("mail")
        async def mail(message: object) -> None:
            handled.append("mail")

        await outbox.enqueue("mail", "x", due=clock.now() + timedelta(hours=1))
        assert await room.drain() == 0
        clock.advance(timedelta(hours=1))
        assert await room.drain() == 1
        assert handled == ["mail"]


async def test_events_tell_of_handlers_too() -> None:
    events = Events()
    async with Postroom("memory://", observers=[events]) as room:
        outbox = room.outbox()

        @outbox.handler("mail")
        async def mail(message: object) -> Outcome:
            return Outcome.DEAD.because("no such address")

        await outbox.enqueue("mail", "x")
        await room.drain()
        [event] = events.of("handle")
        assert [message.topic for message in event.given] == ["mail"]
        assert event.result == [Outcome.DEAD.because("no such address")]
        assert event.box.key == "outbox:outbox"
