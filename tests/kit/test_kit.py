"""The kit for users' tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from postroom import NewMessage, Outcome, Postroom, topic
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


@topic("order.placed")
@dataclass
class OrderPlaced:
    order: int
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


async def test_assert_enqueued_takes_types() -> None:
    async with Postroom("memory://") as room:
        outbox = room.outbox()
        await outbox.enqueue(OrderPlaced(1))
        await outbox.enqueue(OrderPlaced(2))
        assert [found.payload for found in await assert_enqueued(outbox, OrderPlaced)] == [
            OrderPlaced(1),
            OrderPlaced(2),
        ]
        [found] = await assert_enqueued(outbox, OrderPlaced(2), count=1)
        assert found.payload == OrderPlaced(2)
        await assert_enqueued(outbox, OrderPlaced, OrderPlaced(1), count=1)
        await assert_enqueued(outbox, "order.placed", OrderPlaced(1), count=1)
        await assert_enqueued(outbox, "order.placed", {"order": 1, "at": "2026-01-01T00:00:00Z"}, count=1)
        await assert_enqueued(outbox, "order.placed", {"order": 1, "at": mock.ANY}, count=1)
        await assert_not_enqueued(outbox, OrderPlaced(3))
        with pytest.raises(AssertionError):
            await assert_not_enqueued(outbox, OrderPlaced(1))


async def test_a_failed_assertion_shows_what_was_wanted_and_found() -> None:
    async with Postroom("memory://") as room:
        outbox = room.outbox()
        await outbox.enqueue("mail", {"to": "ann"}, correlation_id="7")
        with pytest.raises(AssertionError) as caught:
            await assert_enqueued(outbox, "mail", {"to": "bob"}, correlation_id="8")
        assert str(caught.value).splitlines() == [
            "wanted one like this in <Outbox 'outbox' on memory> on topic 'mail', found 0 of 1",
            "wanted: payload={'to': 'bob'} correlation_id='8'",
            "found:  payload={'to': 'ann'} correlation_id='7'",
        ]
        with pytest.raises(AssertionError, match=r"wanted: any payload\nnothing on this topic; the box has 'mail'"):
            await assert_enqueued(outbox, "mails")
        await outbox.enqueue_many([NewMessage("many", number) for number in range(12)])
        with pytest.raises(AssertionError, match=r"found:  payload=9\nand 2 more$"):
            await assert_enqueued(outbox, "many", 12)


@pytest.mark.req("RHI-052")
@pytest.mark.store("memory")
async def test_a_frozen_clock_moves_only_by_advance() -> None:
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


async def test_events_include_handler_calls() -> None:
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
