"""The janitor: reaps and purges at its intervals, by its own policies, or only when called."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroom import Cleaned, Cleaning, Outcome, OwnerToken, Postroom, State
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Logged, Sabotage, always, put, soon, states

NEVER = timedelta(days=1)
DAY = timedelta(days=1)


class TestAtIntervals:
    @pytest.mark.req("RHI-027", "IBX-072", "OBX-047", "IBX-112", "OBX-100")
    async def test_reap(
        self, open_room: OpenRoom, clock: FrozenClock, events: Events, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        room = await open_room(clock, observers=[events], cleaning=Cleaning(reap_interval=SOON, interval=NEVER))
        for box in (room.inbox(poll_interval=NEVER), room.outbox(poll_interval=NEVER)):
            await put(box, 1)
            await put(box, 2, expires=clock.now() + timedelta(seconds=10))
            [first, _] = await box.claim(OwnerToken.new(), 20)
            assert first.message_id == "1"
            await put(box, 3, due=clock.now() + HOUR, expires=clock.now() + timedelta(seconds=10))
        room.inbox("working").handler("t")(always())
        await room.start()
        await events.wait("reap")
        clock.advance(30)
        with Logged() as logged:
            await events.wait("reap", lambda event: event.result == (2, 2), count=2)
        for box in (room.inbox(), room.outbox()):
            assert await states(box) == {"1": State.WAITING, "2": State.DEAD, "3": State.DEAD}
        reaped = logged.saying("reaped 2 leases, 2 messages expired")
        assert [record.levelno for record in reaped] == [logging.INFO] * 2
        assert all(f"store={room.store.name}" in record.message for record in reaped)

    @pytest.mark.req("RHI-027", "RHI-039", "RHI-055")
    async def test_purge_of_done_and_of_dead(self, open_room: OpenRoom, clock: FrozenClock, events: Events) -> None:
        room = await open_room(clock, observers=[events], cleaning=Cleaning(reap_interval=NEVER, interval=SOON))
        box = room.inbox(retention=DAY, dead_retention=2 * DAY)
        box.handler("t")(always())
        box.handler("dies")(always(Outcome.DEAD))
        await put(box, 1)
        await put(box, 2, topic="dies")
        await room.drain()
        await put(box, 3, due=clock.now() + 30 * DAY)
        await room.start()
        clock.advance(DAY)
        await events.wait("purge", lambda event: event.given.state is State.DONE and event.result == 1)
        assert await states(box) == {"2": State.DEAD, "3": State.WAITING}
        clock.advance(DAY)
        await events.wait("purge", lambda event: event.given.state is State.DEAD and event.result == 1)
        assert await states(box) == {"3": State.WAITING}

    @pytest.mark.req("RHI-039", "RHI-055", "RHI-091")
    async def test_dead_letters_are_kept_by_default(
        self, open_room: OpenRoom, clock: FrozenClock, events: Events
    ) -> None:
        room = await open_room(clock, observers=[events], cleaning=Cleaning(interval=SOON))
        box = room.inbox()
        box.handler("t")(always(Outcome.DEAD))
        await put(box, 1)
        await room.drain()
        clock.advance(10_000 * DAY)
        await room.start()
        await events.wait("purge", count=3)
        assert {event.given.state for event in events.of("purge")} == {State.DONE}
        assert await states(box) == {"1": State.DEAD}

    @pytest.mark.req("RHI-029")
    async def test_in_batches(self, open_room: OpenRoom, clock: FrozenClock, events: Events) -> None:
        room = await open_room(
            clock, observers=[events], cleaning=Cleaning(interval=SOON, reap_interval=NEVER, batch_size=10)
        )
        box = room.inbox(retention=timedelta())
        box.handler("t")(always())
        await put(box, *range(35))
        await room.drain()
        await room.start()
        await events.wait("purge", lambda event: event.result == 5)
        assert [event.result for event in events.of("purge")][:4] == [10, 10, 10, 5]

    async def test_the_first_comes_after_one_interval(self, open_room: OpenRoom, events: Events) -> None:
        room = await open_room(observers=[events], cleaning=Cleaning(interval=NEVER, reap_interval=NEVER))
        room.inbox().handler("t")(always())
        await room.start()
        await events.wait("claim")
        await room.stop()
        assert events.of("reap") == events.of("purge") == []

    @pytest.mark.req("RHI-031")
    async def test_a_task_that_fails_starts_again(self, open_room: OpenRoom, events: Events) -> None:
        room = await open_room(
            observers=[events], cleaning=Cleaning(interval=SOON, reap_interval=SOON, restart_delay=SOON)
        )
        room.inbox(poll_interval=NEVER).handler("t")(always())
        sabotage = Sabotage(room, "reap")
        with Logged() as logged:
            await room.start()
            await sabotage.felt(2)
            await events.wait("purge", count=3)  # the other task is not concerned
            sabotage.mend()
            await events.wait("reap")
        records = logged.saying("reap failed; it starts again in 0.0 s")
        assert len(records) >= 2
        assert {record.levelno for record in records} == {logging.ERROR}
        assert all("store=" in record.message and "box=inbox:inbox" in record.message for record in records)

    async def test_it_rests_before_it_starts_again(self, open_room: OpenRoom) -> None:
        room = await open_room(cleaning=Cleaning(interval=SOON, reap_interval=SOON, restart_delay=HOUR))
        room.inbox(poll_interval=NEVER).handler("t")(always())
        sabotage, other = Sabotage(room, "reap"), Sabotage(room, "purge")
        await room.start()
        await asyncio.gather(sabotage.felt(), other.felt())
        await soon(room.stop())
        assert (sabotage.calls, other.calls) == (1, 1)

    @pytest.mark.req("RHI-029", "RHI-030", "RHI-031", "RHI-053")
    async def test_the_defaults(self) -> None:
        cleaning = Cleaning()
        assert (cleaning.interval, cleaning.batch_size) == (timedelta(minutes=5), 1000)
        assert (cleaning.restart_delay, cleaning.automatic) == (timedelta(seconds=30), True)


class TestByHand:
    @pytest.mark.req("RHI-042")
    async def test_switched_off(self, open_room: OpenRoom, events: Events) -> None:
        room = await open_room(
            observers=[events], cleaning=Cleaning(automatic=False, interval=SOON, reap_interval=SOON)
        )
        before = len(asyncio.all_tasks())
        room.inbox(poll_interval=NEVER, lease_renewal=False).handler("t")(always())
        await room.start()
        assert len(asyncio.all_tasks()) == before + 1  # the pump, whose worker begins with it
        await events.wait("claim")
        await room.stop()
        assert events.of("reap") == events.of("purge") == []

    @pytest.mark.req("RHI-043", "RHI-044")
    async def test_once(self, still: Postroom, clock: FrozenClock) -> None:
        one, two = still.inbox(retention=DAY, dead_retention=DAY), still.outbox("two", retention=DAY)
        for box in (one, two):
            box.handler("t")(always())
            box.handler("dies")(always(Outcome.DEAD))
            await put(box, 1, 2)
            await put(box, 3, topic="dies")
        await still.drain()
        for box in (one, two):
            await put(box, 4)
            await put(box, 5, due=clock.now() + 9 * DAY, expires=clock.now() + DAY)
            await box.claim(OwnerToken.new())
        clock.advance(DAY)
        assert await still.cleanup("unknown") == {}
        assert await still.cleanup("two") == {"outbox:two": Cleaned(reaped=2, done=2, dead=0)}
        assert await still.cleanup() == {"inbox:inbox": (2, 2, 1), "outbox:two": (0, 0, 0)}
        # What has died of age just now is kept like any dead letter.
        assert await states(one) == {"4": State.WAITING, "5": State.DEAD}
        assert await states(two) == {"3": State.DEAD, "4": State.WAITING, "5": State.DEAD}

    @pytest.mark.req("RHI-042")
    async def test_on_another_host(self, open_room: OpenRoom, clock: FrozenClock) -> None:
        room, other = await open_room(clock), await open_room(clock)
        box = room.inbox(retention=DAY)
        box.handler("t")(always())
        await put(box, 1)
        await room.drain()
        clock.advance(DAY)
        other.inbox(retention=DAY)
        assert await other.cleanup() == {"inbox:inbox": (0, 1, 0)}


def test_what_was_cleaned_adds_up() -> None:
    cleaned: Any = Cleaned(1, 2, 3)
    assert cleaned._asdict() == {"reaped": 1, "done": 2, "dead": 3}
