"""An observer is called when a message dies; and what handling costs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from postroom import Outcome, Postroom
from postroom.testing import Events
from tests.runtime.support import always, put

MESSAGES = 2000
PER_SECOND = 1000


@pytest.mark.req("IBX-OQ-02")
async def test_an_observer_learns_which_message_died_and_why(still: Postroom, events: Events) -> None:
    box = still.inbox()
    box.handler("t")(always(Outcome.DEAD.because("no such account")))
    await put(box, "by its handler")
    await still.drain()
    [handled] = events.of("handle")
    assert [message.message_id for message in handled.given] == ["by its handler"]
    assert [(outcome.result, outcome.reason) for outcome in handled.result] == [("dead", "no such account")]
    assert [settlement.verdict for event in events.of("settle") for settlement in event.given] == ["dead"]


@pytest.mark.req("IBX-OQ-02")
async def test_also_by_hand(still: Postroom, events: Events) -> None:
    box = still.inbox()
    await put(box, "1")
    await box.mark_dead("1", "s", error="no such account")
    [marked] = events.of("mark")
    assert marked.result == [True]


@pytest.mark.req("IBX-121", "OBX-112")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_a_thousand_messages_take_less_than_a_second_of_one_processor(still: Postroom, kind: str) -> None:
    """Measured in the time of this process, whatever else the machine does; benchmarks say how many it really is."""
    box: Any = getattr(still, kind)()
    box.handler("t")(always())
    await put(box, *range(MESSAGES))
    began = time.process_time()
    assert await still.drain() == MESSAGES
    assert MESSAGES / (time.process_time() - began) > PER_SECOND
