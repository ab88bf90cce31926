"""A backoff that returns nonsense delays its own message, and no other."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from postroom import Backoff, Message, Outcome, Postroom, State
from postroom.spi import Settlement
from postroom.testing import FrozenClock
from tests.scenarios.support import LEASE, SOON, becomes, eventually, ids, owner, put

A_HUNDRED_YEARS = timedelta(days=36_600)
"""The longest delay that can be asked for."""


class Broken:
    """Not a number, and it says so."""

    def __float__(self) -> float:
        raise TypeError("no number")


CURVES: dict[str, Any] = {
    "1e12": 1e12,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "negative": -5.0,
    "str": "soon",
    "None": None,
    "complex": 1j,
    "huge int": 10**400,
    "object": Broken(),
}


def backoff(curve: str, *, jitter: float = 0.0) -> Backoff:
    return Backoff(lambda _attempt: CURVES[curve], jitter)


@pytest.mark.parametrize("curve", CURVES)
async def test_a_worker_stores_all_outcomes(room: Postroom, *, curve: str) -> None:
    inbox = room.inbox(backoff=backoff(curve), poll_interval=SOON, max_poll_interval=SOON)

    @inbox.handler("bad")
    async def fail(_: Message[str]) -> Outcome:
        return Outcome.FAILED

    @inbox.handler("good")
    async def succeed(_: Message[str]) -> None: ...

    await put(inbox, 1, topic="bad")
    await put(inbox, 2, 3, topic="good")
    await room.start()

    async def has_failed() -> bool:
        return (await inbox.get("1")).attempt > 0

    assert await eventually(has_failed, 2), "the failure is not stored"
    assert await becomes(inbox, 2, State.DONE, seconds=2)
    assert await becomes(inbox, 3, State.DONE, seconds=2)
    await put(inbox, 4, topic="good")
    assert await becomes(inbox, 4, State.DONE, seconds=2)
    assert await room.is_ready()


@pytest.mark.parametrize("order", ["none", "fifo"])
@pytest.mark.parametrize("curve", CURVES)
async def test_an_abandoned_message_waits_a_finite_time(
    still: Postroom, clock: FrozenClock, *, curve: str, order: Any
) -> None:
    inbox = still.inbox(order=order, backoff=backoff(curve))
    worker = owner()
    await put(inbox, 1, group="1")
    await put(inbox, 2, group="2")
    one, two = await inbox.claim(worker, LEASE)
    settlements = [Settlement.retry(one.claim), Settlement.done(two.claim)]  # type: ignore[arg-type]
    assert list(await still.store.settle(inbox.box, settlements)) == [True, True]
    assert (await inbox.get("1")).state is State.WAITING
    assert (await inbox.get("2")).state is State.DONE
    clock.advance(A_HUNDRED_YEARS)
    assert ids(await inbox.claim(worker, LEASE)) == ["1"]


@pytest.mark.parametrize("jitter", [0.0, 0.5])
@pytest.mark.parametrize("curve", CURVES)
async def test_abandon_takes_any_curve(still: Postroom, clock: FrozenClock, *, curve: str, jitter: float) -> None:
    inbox = still.inbox(backoff=backoff(curve, jitter=jitter))
    worker = owner()
    await put(inbox, 1, 2)
    claimed = await inbox.claim(worker, LEASE)
    assert await inbox.abandon(worker, claimed, last_error="failed") == [True, True]
    clock.advance(A_HUNDRED_YEARS)
    assert sorted(ids(await inbox.claim(worker, LEASE))) == ["1", "2"]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.RETRY], ids=["failed", "retry"])
@pytest.mark.parametrize("delay", [timedelta.max, timedelta.min, -timedelta(seconds=1)], ids=["max", "min", "negative"])
async def test_an_outcome_with_an_impossible_delay(room: Postroom, *, outcome: Outcome, delay: timedelta) -> None:
    inbox = room.inbox(poll_interval=SOON, max_poll_interval=SOON)

    @inbox.handler("bad")
    async def fail(_: Message[str]) -> Outcome:
        return outcome.after(delay)

    @inbox.handler("good")
    async def succeed(_: Message[str]) -> None: ...

    await put(inbox, 1, topic="bad")
    await put(inbox, 2, topic="good")
    await room.start()
    assert await becomes(inbox, 2, State.DONE, seconds=2)

    async def waits() -> bool:
        message = await inbox.get("1")
        return message.state is State.WAITING and message.deliveries > 0

    assert await eventually(waits, 2), "the outcome is not stored"
    await put(inbox, 3, topic="good")
    assert await becomes(inbox, 3, State.DONE, seconds=2)
    assert await room.is_ready()
