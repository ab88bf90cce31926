"""Retries: how often, how late, and where they end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom import Backoff, Message, Outcome, OwnerToken, Postroom, State
from postroom.testing import Events, FrozenClock
from tests.runtime.support import Logged, always, put, soon, state_of, states


def failing(message: Message[Any]) -> None:
    raise ValueError(f"attempt {message.attempt}")


async def delays(room: Postroom, clock: FrozenClock, box: Any) -> list[float]:
    """Seconds between the attempts, until there are no more."""
    found: list[float] = []
    await room.drain()
    while (await box.get("1")).state is State.WAITING:
        waited = 0.0
        while not await room.drain():
            clock.advance(0.5)
            waited += 0.5
        found.append(waited)
    return found


class TestAttempts:
    @pytest.mark.req(
        *("IBX-075", "IBX-080", "IBX-081", "IBX-083", "IBX-084", "OBX-050", "OBX-055", "OBX-056", "OBX-058", "OBX-059"),
        "C-08",
    )
    async def test_the_default_is_ten_attempts_with_growing_delays(self, still: Postroom, clock: FrozenClock) -> None:
        for box in (still.inbox(), still.outbox()):
            box.handler("t")(failing)
            await put(box, 1)
            assert await delays(still, clock, box) == [2, 4, 8, 16, 32, 60, 60, 60, 60]
            message = await box.get("1")
            assert (message.state, message.deliveries) == (State.DEAD, 10)
            assert message.last_error == "ValueError: attempt 9"

    @pytest.mark.req("C-07")
    async def test_a_dead_letter_shows_every_attempt(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox(max_attempts=3)
        box.handler("t")(failing)
        await put(box, 1)
        await delays(still, clock, box)
        assert (await box.get("1")).attempt == 3

    @pytest.mark.req("IBX-084", "OBX-059", "RHI-111", "RHI-144")
    @pytest.mark.parametrize("most", [1, 3])
    async def test_as_many_as_were_asked_for(self, still: Postroom, clock: FrozenClock, most: int) -> None:
        for box in (still.inbox(max_attempts=most), still.outbox(max_attempts=most)):
            box.handler("t")(failing)
            await put(box, 1)
            assert len(await delays(still, clock, box)) == most - 1
            assert (await box.get("1")).deliveries == most

    @pytest.mark.req("IBX-082", "OBX-057", "C-08")
    @pytest.mark.parametrize(
        ("backoff", "wanted"),
        [
            (Backoff.constant(7), [7, 7, 7]),
            (Backoff.exponential(base=3, cap=20), [3, 9, 20]),
            (Backoff(lambda attempt: attempt * 10.0), [10, 20, 30]),
        ],
    )
    async def test_other_backoffs(
        self, still: Postroom, clock: FrozenClock, backoff: Backoff, wanted: list[float]
    ) -> None:
        box = still.inbox(max_attempts=4, backoff=backoff)
        box.handler("t")(failing)
        await put(box, 1)
        assert await delays(still, clock, box) == wanted

    @pytest.mark.req("C-08", "IBX-082")
    async def test_immediately(self, still: Postroom) -> None:
        box = still.inbox(max_attempts=4, backoff=Backoff.immediate())
        box.handler("t")(failing)
        await put(box, 1)
        assert await still.drain() == 4
        assert await state_of(box) is State.DEAD

    @pytest.mark.req("IBX-077", "OBX-052")
    async def test_the_handler_sees_which_attempt_it_is(self, still: Postroom) -> None:
        box = still.inbox(max_attempts=3, backoff=Backoff.immediate())
        seen: list[tuple[int, int, str | None]] = []

        @box.handler("t")
        async def handle(message: Message[str]) -> Outcome | None:
            seen.append((message.attempt, message.deliveries, message.last_error))
            return None if message.attempt == 2 else Outcome.FAILED.because(f"reason {message.attempt}")

        await put(box, 1)
        await still.drain()
        assert seen == [(0, 1, None), (1, 2, "reason 0"), (2, 3, "reason 1")]
        assert await state_of(box) is State.DONE

    async def test_a_dead_letter_that_is_replayed_has_new_attempts(self, still: Postroom) -> None:
        box = still.inbox(max_attempts=2, backoff=Backoff.immediate())
        box.handler("t")(failing)
        await put(box, 1)
        assert await still.drain() == 2
        assert await box.replay() != []
        assert await still.drain() == 2

    async def test_a_backoff_that_fails_costs_no_message(self, still: Postroom, clock: FrozenClock) -> None:
        def broken(attempt: int) -> float:
            if attempt == 1:
                raise ZeroDivisionError
            return float("nan") if attempt == 2 else 1

        box = still.inbox(backoff=Backoff(broken), max_poll_interval=timedelta(seconds=9))
        box.handler("t")(failing)
        box.handler("fine")(always())
        await put(box, 1)
        await put(box, 2, topic="fine")
        with Logged() as logged:
            await soon(still.drain())
        assert await states(box) == {"1": State.WAITING, "2": State.DONE}
        assert logged.saying("the backoff failed for attempt 1")
        for attempt in (2, 3):
            clock.advance(9)
            await soon(still.drain())
            assert (await box.get("1")).attempt == attempt


class TestOtherEnds:
    @pytest.mark.req("C-09")
    async def test_a_message_that_kills_its_workers(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox(max_deliveries=3)
        box.handler("t")(always())
        await put(box, 1)
        for _ in range(3):
            assert len(await box.claim(OwnerToken.new())) == 1
            clock.advance(31)
        assert await still.drain() == 0
        message = await box.get("1")
        assert (message.state, message.last_error, message.attempt) == (State.DEAD, "delivery limit", 0)

    @pytest.mark.req("C-09", "C-05")
    async def test_retry_without_end_ends_too(self, still: Postroom) -> None:
        box = still.inbox(max_deliveries=5)
        box.handler("t")(always(Outcome.RETRY))
        await put(box, 1)
        assert await soon(still.drain()) == 5
        assert await state_of(box) is State.DEAD

    async def test_what_has_expired_is_not_handled(self, still: Postroom, clock: FrozenClock) -> None:
        box = still.inbox()
        got: list[Any] = []
        box.handler("t")(got.append)
        await put(box, 1, expires=clock.now() + timedelta(seconds=10))
        await put(box, 2, expires=clock.now() + timedelta(seconds=30))
        clock.advance(10)
        assert await still.drain() == 1
        message = await box.get("1")
        assert (message.state, message.last_error) == (State.DEAD, "expired")
        assert await state_of(box, 2) is State.DONE

    async def test_a_duplicate_of_what_is_done_is_not_handled_again(self, still: Postroom, events: Events) -> None:
        box = still.inbox()
        got: list[Any] = []
        box.handler("t")(got.append)
        for _ in range(3):
            await put(box, 1)
            await still.drain()
        assert len(got) == 1

    async def test_collapsed_messages_are_not_handled(self, still: Postroom) -> None:
        box = still.inbox()
        got: list[Any] = []
        box.handler("t")(lambda message: got.append(message.message_id))
        await put(box, 1, 2, 3, collapse_key="k")
        await still.drain()
        assert got == ["3"]
