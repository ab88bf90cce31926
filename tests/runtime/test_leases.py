"""Leases: kept while a handler works, and what follows when one is lost."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroom import Backoff, Message, Outcome, OwnerToken, Postroom, State
from postroom.testing import Events, FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, Sabotage, always, ids, put, soon, state_of, states

SHORT = 0.1
"""Seconds of a lease that is renewed, or passes, while a test waits."""


async def past_the_lease(events: Events, clock: FrozenClock) -> None:
    """More time than the lease was, a good half of it after each of three renewals.

    Renewals go by the time of this process, leases by the clock of the store: so a slow machine loses none.
    """
    for count in (1, 2, 3):
        await events.wait("renew", count=count)
        clock.advance(SHORT * 0.6)


class TestRenewal:
    @pytest.mark.req("RHI-009", "RHI-098", "C-28")
    async def test_a_handler_slower_than_its_lease(
        self, still: Postroom, open_room: OpenRoom, events: Events, clock: FrozenClock
    ) -> None:
        calls: list[str] = []
        room, other = still, await open_room(clock)
        options: Any = {"lease_seconds": SHORT, "poll_interval": SOON, "max_poll_interval": SOON}
        box, rival = room.inbox(**options), other.inbox(**options)

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            calls.append("slow")
            await other.start()  # from now on another worker would claim it
            await past_the_lease(events, clock)
            assert not message.lease_lost

        rival.handler("t")(lambda _: calls.append("rival"))
        await put(box, 1)
        await room.start()
        await events.wait("settle")
        await other.stop()
        message = await box.get("1")
        assert (calls, message.state, message.deliveries) == (["slow"], State.DONE, 1)

    @pytest.mark.req("RHI-009", "RHI-098", "RHI-099", "C-28")
    @pytest.mark.parametrize(("order", "batch"), [("none", 50), ("none", None), ("fifo", 50), ("fifo", None)])
    async def test_fifty_that_take_longer_than_the_lease(
        self,
        still: Postroom,
        open_room: OpenRoom,
        events: Events,
        clock: FrozenClock,
        order: Any,
        batch: int | None,
    ) -> None:
        """In one batch, or one by one: those that wait for their turn are renewed as well."""
        calls: list[str] = []
        room, other = still, await open_room(clock)
        options: Any = {"order": order, "lease_seconds": SHORT, "poll_interval": SOON, "max_poll_interval": SOON}
        box, rival = room.inbox(**options), other.inbox(**options)
        everything = asyncio.Event()

        @box.handler("t", batch=batch)
        async def handle(given: Any) -> None:
            messages = given if isinstance(given, list) else [given]
            calls.extend(ids(messages))
            if "0" in ids(messages):
                await other.start()
                await past_the_lease(events, clock)
            if len(calls) == 50:
                everything.set()

        rival.handler("t")(lambda message: calls.append(f"rival {message.message_id}"))
        await put(box, *range(50), group="g")
        await room.start()
        await soon(everything.wait())
        await room.stop()
        await other.stop()
        assert calls == [str(n) for n in range(50)]
        assert {(m.state, m.deliveries) for m in await box.find()} == {(State.DONE, 1)}

    @pytest.mark.req("RHI-098")
    async def test_everything_in_hand_in_one_call_at_half_time(self, room: Postroom, events: Events) -> None:
        box = room.inbox(lease_seconds=SHORT, batch_size=5)
        gate = Gate()
        box.handler("t")(gate)
        await put(box, *range(20))
        await room.start()
        renewed = await events.wait("renew", lambda event: len(event.given) == 10)
        assert renewed.result == [True] * 10
        gate.open()

    @pytest.mark.req("RHI-100", "C-28")
    async def test_a_renewal_that_fails_is_a_warning(self, room: Postroom, events: Events) -> None:
        box = room.inbox(lease_seconds=SHORT)
        sabotage = Sabotage(room, "renew")
        gate = Gate()
        box.handler("t")(gate)
        await put(box, 1)
        with Logged() as logged:
            await room.start()
            await gate.reached()
            await sabotage.felt(2)
            gate.open()
            await events.wait("settle", lambda event: event.result == [True])
        assert await state_of(box) is State.DONE
        warnings = logged.saying("could not be renewed")
        assert {record.levelno for record in warnings} == {logging.WARNING}

    @pytest.mark.req("RHI-101", "RHI-100")
    async def test_if_it_keeps_failing_the_lease_ends(self, open_room: OpenRoom) -> None:
        broken, other = await open_room(), await open_room()
        options: Any = {"lease_seconds": SHORT, "poll_interval": SOON, "max_poll_interval": SOON}
        box, rival = broken.inbox(**options), other.inbox(**options)
        gate, taken = Gate(), asyncio.Event()
        box.handler("t")(gate)
        rival.handler("t")(lambda _: taken.set())
        await put(box, 1)
        await broken.start()
        await gate.reached()
        sabotage = Sabotage(broken, "renew", "exchange", "settle")
        await other.start()
        await soon(taken.wait())
        sabotage.mend()
        gate.open()
        await broken.stop()
        await other.stop()  # which hands in what its handler has done
        message = await box.get("1")
        assert (message.state, message.deliveries) == (State.DONE, 2)
        assert gate.entered[0].lease_lost


class TestLoss:
    @pytest.mark.req("C-28", "C-05")
    @pytest.mark.parametrize("raised", [None, ValueError("late")])
    async def test_without_renewal_another_worker_takes_it(
        self, open_room: OpenRoom, clock: FrozenClock, events: Events, raised: Exception | None
    ) -> None:
        slow, quick = await open_room(clock, observers=[events]), await open_room(clock)
        gate = Gate()
        box = slow.inbox(lease_renewal=False, poll_interval=HOUR)
        other = quick.inbox()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            await gate(message)
            if raised is not None:
                raise raised

        other.handler("t")(always())
        await put(box, 1)
        await slow.start()
        await gate.reached()
        assert not gate.entered[0].lease_lost
        clock.advance(31)
        assert await quick.drain() == 1
        before = await box.get("1")
        with Logged() as logged:
            gate.open()
            settled = await events.wait("settle")
            await slow.stop()
        # Its outcome changed nothing, `lease_lost` is set, and the loss is in the log.
        assert settled.result == [False]
        assert await box.get("1") == before
        assert (before.state, before.attempt, before.deliveries) == (State.DONE, 0, 2)
        assert gate.entered[0].lease_lost
        assert logged.saying("lease was lost")
        assert events.of("renew") == []

    @pytest.mark.req("C-28")
    async def test_a_running_handler_can_read_that_its_lease_is_lost(self, still: Postroom, events: Events) -> None:
        room, box = still, still.inbox(lease_seconds=SHORT)
        gate, noticed = Gate(), asyncio.Event()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            gate.entered.append(message)
            while not message.lease_lost:  # noqa: ASYNC110 - what a careful handler does between its steps
                await asyncio.sleep(0.001)
            noticed.set()

        await put(box, 1)
        await put(box, 2)
        with Logged() as logged:
            await room.start()
            await events.wait("claim", lambda event: bool(event.result))
            await box.mark_dead("1", "s", error="given up by hand")
            await box.mark_dead("2", "s", error="given up by hand")
            await soon(noticed.wait())
            await logged.says("outcome dropped", count=2)
            await room.stop()
        # The second had not begun, and did not.
        assert ids(gate.entered) == ["1"]
        assert await states(box) == {"1": State.DEAD, "2": State.DEAD}
        record = await logged.says("lease lost while handling")
        assert record.levelno == logging.WARNING
        assert "message_id=1" in record.message
        # What was lost is not settled either.
        assert events.of("settle") == []

    async def test_a_lost_message_in_a_group_gives_the_rest_back(self, still: Postroom, events: Events) -> None:
        room, box = still, still.inbox(order="fifo", lease_seconds=SHORT)
        got, done = list[str](), asyncio.Event()

        @box.handler("t")
        async def handle(message: Message[str]) -> None:
            got.append(message.message_id)
            if message.message_id == "1":
                await box.mark_dead("2", "s")
                await events.wait("renew", lambda event: False in event.result)
            if message.message_id == "3":
                done.set()

        await put(box, 1, 2, 3, group="g")
        await room.start()
        await soon(done.wait())
        await room.stop()
        assert got == ["1", "3"]
        assert await states(box) == {"1": State.DONE, "2": State.DEAD, "3": State.DONE}

    async def test_settling_is_not_losing(self, open_room: OpenRoom, clock: FrozenClock, events: Events) -> None:
        """Outcomes and renewals cross each other all the time: that is no reason for a warning.

        Renewals go by the time of this process, leases by the clock of the store, which stands still: none is lost.
        """
        room = await open_room(clock, observers=[events])
        box = room.inbox(lease_seconds=0.002, batch_size=10, backoff=Backoff.immediate(), concurrency=3)
        done = asyncio.Event()
        left = 300

        @box.handler("t")
        async def handle(message: Message[str]) -> Outcome | None:
            nonlocal left
            await asyncio.sleep(0.0005)
            if message.deliveries < 3:
                return Outcome.FAILED if message.deliveries == 1 else Outcome.RETRY
            assert not message.lease_lost
            left -= 1
            if not left:
                done.set()
            return None

        await put(box, *range(300))
        with Logged() as logged:
            await room.start()
            await soon(done.wait(), 30)
            await room.stop()
        assert len(events.of("renew")) > 10
        assert {(m.state, m.deliveries) for m in await box.find(limit=400)} == {(State.DONE, 3)}
        assert logged.saying("lost") == []

    @pytest.mark.req("RHI-167", "IBX-072", "OBX-047")
    @pytest.mark.parametrize("order", ["none", "fifo"])
    async def test_a_crashed_worker_gives_its_group_up(self, still: Postroom, clock: FrozenClock, order: Any) -> None:
        for box in (still.inbox(order=order), still.outbox(order=order)):
            got: list[Any] = []
            box.handler("t")(got.append)
            await put(box, 1, 2, group="g")
            assert len(await box.claim(OwnerToken.new())) == 2  # by a worker that then crashes
            clock.advance(29)
            assert await still.drain() == 0
            clock.advance(1)
            assert await still.drain() == 2
            assert ids(got) == ["1", "2"]

    @pytest.mark.req("C-27")
    async def test_the_lease_is_as_long_as_was_asked_for(self, still: Postroom, clock: FrozenClock) -> None:
        for seconds, box in ((30, still.inbox()), (300, still.outbox(lease_seconds=300))):
            got: list[Any] = []
            box.handler("t")(got.append)
            await put(box, 1)
            await still.drain()
            assert got[0].claim.until == clock.now() + timedelta(seconds=seconds)
