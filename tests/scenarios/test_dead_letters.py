"""What becomes of a message whose handler fails, on every store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom import Backoff, Message, Postroom, State
from postroom.testing import FrozenClock
from tests.scenarios.support import put


def failing(message: Message[Any]) -> None:
    raise ValueError("no such account")


@pytest.mark.req("RHI-005", "C-07")
async def test_a_message_whose_attempts_are_used_up_becomes_a_dead_letter(still: Postroom, clock: FrozenClock) -> None:
    box = still.inbox(max_attempts=3, backoff=Backoff.constant(1))
    box.handler("t")(failing)
    await put(box, "bad")
    for attempt in (1, 2):
        await still.drain()
        assert (await box.get("bad")).attempt == attempt
        assert await box.dead_letters() == []
        clock.advance(1)
    await still.drain()
    [letter] = await box.dead_letters()
    assert (letter.message_id, letter.state, letter.attempt) == ("bad", State.DEAD, 3)
    assert letter.last_error == "ValueError: no such account"
    assert letter.payload == "x"
    clock.advance(3600)
    assert await still.drain() == 0


@pytest.mark.req("RHI-142")
async def test_a_message_is_claimed_before_its_payload_is_decoded(still: Postroom) -> None:
    """A payload that cannot be decoded is the failure of a delivery, not of the claim."""
    box = still.inbox(max_attempts=1)
    box.handler("t")(number)
    await put(box, "bad")
    await still.drain()
    [letter] = await box.dead_letters()
    assert (letter.deliveries, letter.attempt) == (1, 1)


def number(message: Message[int]) -> None:
    raise AssertionError("a payload that is no number reached the handler")


@pytest.mark.req("RHI-142")
async def test_the_owner_and_the_end_of_the_lease_are_stored_when_the_handler_runs(
    still: Postroom, clock: FrozenClock
) -> None:
    box = still.inbox(lease_seconds=45)
    stored: list[Message[Any]] = []

    @box.handler("t")
    async def look(message: Message[Any]) -> None:
        stored.append(await box.get(message.message_id))

    await put(box, "1")
    await still.drain()
    [message] = stored
    assert message.state is State.CLAIMED
    assert message.claim is not None
    assert message.claim.owner is not None
    assert message.claim.until == clock.now() + timedelta(seconds=45)
