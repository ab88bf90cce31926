"""The pump: claims ahead within bounds, sleeps when idle, wakes at once, and outlives a store that fails."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from postroom import Backoff, Event, Message, Outcome, Postroom, State
from postroom._stores.wrapper import StoreWrapper, innermost
from postroom.spi import Verb
from postroom.testing import Events
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, Sabotage, always, ids, put, soon, state_of, states


class InHand:
    """An observer: how many messages a worker holds, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __call__(self, event: Event) -> None:
        if event.verb == "claim":
            self.now += len(event.result)
        elif event.verb == "settle":
            self.now -= event.result.count(True)
        self.most = max(self.most, self.now)


class TestClaimingAhead:
    @pytest.mark.req("C-49")
    async def test_the_next_batch_is_here_while_handlers_run_and_no_more(self, open_room: OpenRoom) -> None:
        in_hand, events = InHand(), Events()
        room = await open_room(observers=[events, in_hand])
        box = room.inbox(batch_size=5, poll_interval=SOON, max_poll_interval=SOON)
        gate = Gate()
        box.handler("t")(gate)
        await put(box, *range(50))
        await room.start()
        await gate.reached()
        await events.wait("claim", count=2)
        assert (await box.counts())[State.CLAIMED] == 10
        await put(box, 50)  # a wake-up changes nothing while there is no room
        assert room.health()["inbox:inbox"].in_hand == 10
        gate.open()
        await events.wait("settle", lambda _: in_hand.now == 0 and len(gate.entered) == 51)
        assert in_hand.most == 10
        assert [len(event.result) for event in events.of("claim")][:10] == [5] * 10

    @pytest.mark.req("C-49")
    async def test_fifty_at_a_time_by_default(self, still: Postroom, events: Events) -> None:
        box = still.inbox()
        box.handler("t")(always())
        await put(box, *range(120))
        await still.drain()
        assert [len(event.result) for event in events.of("claim")][:3] == [50, 50, 20]

    async def test_outcomes_share_a_transaction_with_the_next_claim(self, still: Postroom, store: str) -> None:
        """Where the store can; counted by the store's own verbs."""
        calls: list[str] = []
        room = Postroom(store=CountingStore(innermost(still.store), calls))
        box = room.inbox(batch_size=10)

        @box.handler("t")
        async def handle(message: Message[str]) -> None: ...

        await put(box, *range(100))
        await room.drain()
        assert set((await states(box)).values()) == {State.DONE}
        if store == "aiosqlite":
            assert calls.count("exchange") >= 9
        assert len(calls) < 60  # far from one or two for each message

    async def test_a_lone_message_does_not_wait_for_a_batch(self, room: Postroom, events: Events) -> None:
        box = room.inbox(batch_size=1000, poll_interval=HOUR)
        gate = Gate()
        gate.open()
        box.handler("t", batch=500)(gate)
        await room.start()
        await events.wait("claim")
        for number in range(3):
            await put(box, number)
            await gate.reached(number + 1)
            await events.wait("settle", count=number + 1)


class CountingStore(StoreWrapper):
    """Notes the calls of three verbs."""

    def __init__(self, inner: Any, calls: list[str]) -> None:
        self._calls = calls
        super().__init__(inner)

    def around(self, verb: Verb, function: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(verb.name)
            return await function(*args, **kwargs)

        return call if verb.name in {"exchange", "settle", "claim"} else function


class TestWaking:
    @pytest.mark.req("C-48")
    @pytest.mark.parametrize("kind", ["inbox", "outbox"])
    async def test_what_this_process_writes_is_handled_at_once(self, room: Postroom, events: Events, kind: str) -> None:
        """The poll would come in an hour."""
        box: Any = getattr(room, kind)(poll_interval=HOUR)
        box.handler("t")(always())
        box.handler("dies")(always(Outcome.DEAD))
        await room.start()
        await events.wait("claim")
        await put(box, 1)
        await events.wait("settle")
        await put(box, 2, topic="dies")
        await events.wait("settle", count=2)
        await box.replay()
        await events.wait("settle", count=3)
        assert [ids(event.result) for event in events.of("claim") if event.result] == [["1"], ["2"], ["2"]]
        if kind == "inbox":
            await box.already_processed("seen", "s")
            await box.mark_processing("seen", "s")
            await events.wait("claim", lambda event: ids(event.result) == ["seen"])

    async def test_what_is_known_to_become_due_is_not_left_to_the_poll(self, room: Postroom, events: Events) -> None:
        """Neither a message that this process has put for later, nor one that is to be tried again."""
        box = room.inbox(poll_interval=HOUR, backoff=Backoff.constant(0.01))
        outcomes = iter([Outcome.FAILED, None])
        box.handler("t")(lambda _: next(outcomes))
        await room.start()
        await events.wait("claim")
        await put(box, 1, due=datetime.now(UTC) + timedelta(milliseconds=30))
        await events.wait("settle", count=2)
        assert await state_of(box) is State.DONE

    async def test_a_wakeup_during_a_claim_is_not_lost(self, room: Postroom, events: Events) -> None:
        """The claim under way may have run too early: it must be followed by another at once."""
        box = room.inbox(poll_interval=HOUR)
        handled = asyncio.Event()
        box.handler("t")(lambda _: handled.set())
        exchange: Any = room.store.exchange
        claimed, may_return = asyncio.Event(), asyncio.Event()

        async def slow_exchange(*args: Any) -> Any:
            result = await exchange(*args)
            claimed.set()
            await may_return.wait()
            return result

        room.store.exchange = slow_exchange
        await room.start()
        await soon(claimed.wait())
        await put(box, 1)
        may_return.set()
        await soon(handled.wait())

    async def test_polling_finds_what_others_wrote(self, open_room: OpenRoom) -> None:
        room, other = await open_room(), await open_room()
        box = room.inbox(poll_interval=SOON)
        handled = asyncio.Event()
        box.handler("t")(lambda _: handled.set())
        await room.start()
        await put(other.inbox(), 1)
        await soon(handled.wait())

    @pytest.mark.req("C-48")
    async def test_idle_polls_grow_apart(self, open_room: OpenRoom) -> None:
        times: list[float] = []
        enough = asyncio.Event()

        def observe(event: Event) -> None:
            if event.verb == "claim":
                times.append(asyncio.get_running_loop().time())
                if len(times) == 8:
                    enough.set()

        room = await open_room(observers=[observe])
        box = room.inbox(poll_interval=timedelta(milliseconds=10), max_poll_interval=timedelta(milliseconds=80))
        box.handler("t")(always())
        await room.start()
        await soon(enough.wait())
        gaps = [later - earlier for earlier, later in pairwise(times)]
        wanted = [0.01, 0.02, 0.04, 0.08, 0.08, 0.08, 0.08]
        assert all(gap >= least * 0.99 for gap, least in zip(gaps, wanted, strict=True)), gaps
        assert min(gaps[4:]) < 0.16  # it stays at the longest

    @pytest.mark.req("C-48")
    async def test_half_a_second_to_five_by_default(self, still: Postroom) -> None:
        assert still.inbox().box.work.idle == (timedelta(seconds=0.5), timedelta(seconds=5))
        assert still.inbox("slow", poll_interval=HOUR).box.work.idle == (HOUR, HOUR)

    @pytest.mark.req("C-48")
    async def test_no_pause_between_full_claims(self, room: Postroom, events: Events) -> None:
        box = room.inbox(poll_interval=HOUR, batch_size=10)
        box.handler("t", batch=10)(always())
        await put(box, *range(200))
        await room.start()
        await events.wait("claim", lambda event: not event.result)
        await room.stop()
        assert set((await states(box)).values()) == {State.DONE}


class TestTrouble:
    async def test_a_store_that_is_away_for_a_while(self, room: Postroom) -> None:
        box = room.inbox(poll_interval=SOON)
        handled = asyncio.Event()
        box.handler("t")(lambda _: handled.set())
        await put(box, 1)
        sabotage = Sabotage(room, "exchange")
        with Logged() as logged:
            await room.start()
            await sabotage.felt(3)
            health = room.health()["inbox:inbox"]
            assert (health.running, health.last_error) == (True, "ConnectionError")
            assert not await room.is_ready()
            sabotage.mend()
            await soon(handled.wait())
        await room.stop()
        assert await state_of(box) is State.DONE
        errors = logged.saying("the store failed")
        assert len(errors) >= 3
        assert {record.levelno for record in errors} == {logging.ERROR}
        assert all("box=inbox:inbox" in record.message for record in errors)

    async def test_outcomes_are_kept_until_it_is_back(self, room: Postroom, events: Events) -> None:
        box = room.inbox(poll_interval=HOUR)
        sabotage = Sabotage(room, "exchange", "settle")
        sabotage.mend()
        calls: list[str] = []

        @box.handler("t")
        async def handle(message: Message[str]) -> Outcome | None:
            calls.append(message.message_id)
            sabotage.spoil()
            return {"1": None, "2": Outcome.FAILED, "3": Outcome.DEAD}[message.message_id]

        await put(box, 1, 2, 3)
        await room.start()
        await sabotage.felt(2)
        sabotage.mend()
        # After an error that is not transient, each outcome is handed in alone.
        await events.wait("settle", lambda event: event.error is None, count=3)
        await room.stop()
        assert sorted(calls) == ["1", "2", "3"]
        assert await states(box) == {"1": State.DONE, "2": State.WAITING, "3": State.DEAD}
        health = room.health()
        assert health == {}

    async def test_rests_between_tries_and_wakes_up_for_nothing_but_stop(self, room: Postroom) -> None:
        box = room.inbox(poll_interval=SOON)
        box.handler("t")(always())
        sabotage = Sabotage(room, "exchange")
        await room.start()
        await sabotage.felt(2)
        for number in range(5):  # each of these is a wake-up
            await put(box, number)
        assert sabotage.calls < 5
        await soon(room.stop())

    async def test_a_store_that_returns_nonsense(self, room: Postroom, events: Events) -> None:
        """The worker breaks down over it, gives back what it had, and is started again."""
        box = room.inbox(poll_interval=HOUR)
        calls: list[int] = []
        box.handler("t")(lambda message: calls.append(message.deliveries))
        nonsense: list[Any] = [[], ([], [])]  # fewer results than outcomes

        def mad(verb: Any) -> Any:
            async def call(*args: Any) -> Any:
                if args[1] and nonsense:
                    results = nonsense.copy()
                    nonsense.clear()
                    return results[len(args) - 2]
                return await verb(*args)

            return call

        room.store.settle, room.store.exchange = mad(room.store.settle), mad(room.store.exchange)
        await put(box, 1)
        with Logged() as logged:
            await room.start()
            await logged.says("worker failed; it starts again")
            await events.wait("settle", lambda event: event.given[0].verdict == "done")
            await room.stop()
        assert calls == [1, 2]
        assert await state_of(box) is State.DONE

    async def test_stop_while_the_store_is_away(self, open_room: OpenRoom) -> None:
        """It tries to hand its outcomes in for as long as it may, without keeping the loop to itself."""
        room = await open_room(shutdown_timeout=timedelta(milliseconds=300))
        box = room.inbox()
        gate = Gate()
        box.handler("t")(gate)
        await put(box, 1)
        await room.start()
        await gate.reached()
        sabotage = Sabotage(room, "exchange", "settle")
        with Logged() as logged:
            gate.open()
            await sabotage.felt()
            await soon(room.stop())
        assert sabotage.calls < 20
        assert logged.saying("did not end in")
        assert logged.saying("could not give its messages back")
        assert not room.is_running

    async def test_it_comes_back_during_the_stop(self, room: Postroom) -> None:
        box = room.inbox()
        gate = Gate()
        box.handler("t")(gate)
        await put(box, 1)
        await room.start()
        await gate.reached()
        sabotage = Sabotage(room, "exchange", "settle")
        gate.open()
        await sabotage.felt()
        stopping = asyncio.ensure_future(room.stop())
        await sabotage.felt(3)
        sabotage.mend()
        await soon(stopping)
        assert await state_of(box) is State.DONE

    async def test_a_drain_raises_it(self, room: Postroom) -> None:
        """A script wants to know; and what it had claimed is given back."""
        box = room.inbox()
        box.handler("t")(always())
        await put(box, 1)
        Sabotage(room, "exchange")
        with pytest.raises(ConnectionError):
            await soon(room.drain())

    async def test_a_drain_that_is_cancelled_gives_back(self, room: Postroom) -> None:
        box = room.inbox()
        gate = Gate()
        box.handler("t")(gate)
        await put(box, 1, 2)
        draining = asyncio.ensure_future(room.drain())
        await gate.reached()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert set((await states(box)).values()) == {State.WAITING}
        assert (await box.get("1")).attempt == 0
