"""When a worker renews, claims and starts again: with a clock of the event loop that the test moves."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Cleaning, Message, Postroom, State
from postroom._runtime.schedule import PollSchedule
from postroom.testing import Events
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, Sabotage, always, put, soon

LEASE = 3600.0
NEVER = timedelta(days=1)


class LoopTime:
    """Moves the clock of the running event loop ahead: whatever waits for a time before that wakes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._real = self._loop.time
        self._ahead = 0.0
        monkeypatch.setattr(self._loop, "time", lambda: self._real() + self._ahead)

    async def advance(self, seconds: float) -> None:
        self._ahead += seconds
        for _ in range(20):  # until every task that was woken has run
            await asyncio.sleep(0)


@pytest.fixture
async def loop_time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    return LoopTime(monkeypatch)


class TestRenewal:
    @pytest.mark.req("RHI-097", "RHI-098", "C-28")
    @pytest.mark.parametrize(("renewal", "part"), [(True, 0.5), (0.1, 0.1), (0.9, 0.9)])
    async def test_a_lease_is_renewed_at_the_part_of_it_that_was_asked_for(
        self, room: Postroom, events: Events, loop_time: LoopTime, renewal: Any, part: float
    ) -> None:
        box, gate = room.inbox(lease_seconds=LEASE, lease_renewal=renewal), Gate()
        box.handler("t")(gate)
        await put(box, 1)
        await room.start()
        await gate.reached()
        await loop_time.advance(part * LEASE - 60)
        assert events.of("renew") == []
        await loop_time.advance(120)
        await events.wait("renew")
        gate.open()

    @pytest.mark.req("RHI-097")
    @pytest.mark.parametrize("value", [0, 0.09, 0.91, 1, -0.5, float("nan"), float("inf")])
    async def test_a_part_outside_of_a_tenth_to_nine_tenths_is_refused(self, room: Postroom, value: float) -> None:
        with pytest.raises(ArgumentValueError, match=r"lease_renewal must be between 0\.1 and 0\.9"):
            room.inbox("strange", lease_renewal=value)

    async def test_what_is_no_number_is_refused(self, room: Postroom) -> None:
        with pytest.raises(ArgumentTypeError, match="lease_renewal"):
            room.inbox("strange", lease_renewal="half")  # type: ignore[arg-type]

    @pytest.mark.req("RHI-097")
    async def test_half_is_the_default(self, room: Postroom) -> None:
        assert room.inbox().box.work.renew == 0.5

    @pytest.mark.req("RHI-100", "C-28")
    async def test_while_renewals_fail_the_handler_goes_on_and_its_success_counts(
        self, room: Postroom, loop_time: LoopTime
    ) -> None:
        box, gate = room.inbox(lease_seconds=LEASE), Gate()
        box.handler("t")(gate)
        sabotage = Sabotage(room, "renew")
        await put(box, 1)
        with Logged() as logged:
            await room.start()
            await gate.reached()
            for count in (1, 2):
                await loop_time.advance(LEASE / 2)
                await sabotage.felt(count)
            gate.open()
            await soon(room.stop())
        message = await box.get("1")
        assert (message.state, message.deliveries, len(gate.entered)) == (State.DONE, 1, 1)
        assert [record.levelno for record in logged.saying("leases could not be renewed")] == [logging.WARNING] * 2


class TestCleaning:
    @pytest.mark.req("RHI-031")
    async def test_a_task_that_failed_starts_again_after_its_delay_and_not_before(
        self, open_room: OpenRoom, events: Events, loop_time: LoopTime
    ) -> None:
        cleaning = Cleaning(interval=SOON, reap_interval=SOON, restart_delay=HOUR)
        room = await open_room(observers=[events], cleaning=cleaning)
        room.inbox(poll_interval=NEVER, max_poll_interval=NEVER).handler("t")(always())
        sabotage = Sabotage(room, "reap")
        await room.start()
        await sabotage.felt()
        await events.wait("purge", count=5)  # which is as often as the other, and does not fail
        assert sabotage.calls == 1
        await loop_time.advance(HOUR.total_seconds() - 60)
        await events.wait("purge", count=10)
        assert sabotage.calls == 1
        sabotage.mend()
        await loop_time.advance(120)
        await events.wait("reap")


class TestReading:
    @pytest.mark.req("IBX-124", "OBX-116", "C-48")
    @pytest.mark.parametrize("kind", ["inbox", "outbox"])
    async def test_claims_that_find_nothing_grow_apart(
        self, room: Postroom, events: Events, loop_time: LoopTime, kind: str
    ) -> None:
        box: Any = getattr(room, kind)(poll_interval=HOUR, max_poll_interval=4 * HOUR)
        box.handler("t")(always())
        await room.start()
        await events.wait("claim")
        claims = 1
        for pause in (1, 2, 4, 4):  # hours
            await loop_time.advance(pause * 3600 - 60)
            assert len(events.of("claim")) == claims
            await loop_time.advance(120)
            claims += 1
            await events.wait("claim", count=claims)

    @pytest.mark.req("RHI-087", "C-48")
    async def test_two_claims_are_at_least_as_far_apart_as_was_asked_for(
        self, room: Postroom, events: Events, loop_time: LoopTime
    ) -> None:
        box = room.inbox(batch_size=2, read_delay=HOUR)
        handled: list[str] = []

        @box.handler("t")
        async def handle(message: Message[Any]) -> None:
            handled.append(message.message_id)

        await put(box, *range(4))
        await room.start()
        await events.wait("settle", lambda event: event.result == [True] * 2)
        await loop_time.advance(HOUR.total_seconds() - 60)
        await put(box, "later")  # a wake-up does not shorten the pause
        assert handled == ["0", "1"]
        await loop_time.advance(120)
        await events.wait("settle", lambda event: event.result == [True] * 2, count=2)
        assert handled == ["0", "1", "2", "3"]

    @pytest.mark.req("RHI-087")
    async def test_without_a_pause_by_default(self, room: Postroom) -> None:
        assert room.inbox().box.work.read_delay == timedelta(0)

    async def test_a_drain_does_not_wait(self, still: Postroom) -> None:
        box = still.inbox(batch_size=1, read_delay=HOUR)
        box.handler("t")(always())
        await put(box, 1, 2, 3)
        assert await soon(still.drain()) == 3

    @pytest.mark.parametrize(("value", "error"), [(timedelta(-1), ArgumentValueError), (1, ArgumentTypeError)])
    async def test_bad_delays_are_refused(self, room: Postroom, value: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="read_delay"):
            room.inbox("strange", read_delay=value)


def test_a_pause_between_claims_begins_when_the_last_one_ends() -> None:
    paced = PollSchedule(0.5, 5.0, 10.0)
    begun = paced.begin()
    assert not paced.is_due(1.0)  # another claim does not begin beside it
    paced.end()
    paced.learn(begun, 2, 2, 1.0, polls=True)
    paced.wake()
    assert not paced.is_due(10.9)
    assert paced.next_at == 11.0
    assert paced.is_due(11.0)
    paced.begin()
    paced.end()  # of one that failed
    assert paced.is_due(11.0)
