"""A room without handlers that runs only the janitor."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom import Cleaning, OwnerToken, Postroom
from postroom.testing import Events, FrozenClock

SOON = timedelta(milliseconds=1)


@pytest.mark.req("RHI-045", "RHI-042")
async def test_it_cleans_continuously_and_stops() -> None:
    clock, events = FrozenClock(), Events()
    room = Postroom("memory://", clock=clock, observers=[events], cleaning=Cleaning(reap_interval=SOON, interval=SOON))
    inbox, owner = room.inbox(), OwnerToken.new()
    await inbox.enqueue("t", "p", source="s", message_id="1")
    await inbox.claim(owner, 10)
    await inbox.mark_processed("2", "s")
    async with room:
        clock.advance(timedelta(days=40))
        await events.wait("reap", lambda event: event.result.freed == 1)
        await events.wait("purge", lambda event: event.result == 1)
        await room.stop()
        seen = len(events.seen)
        assert not room.is_running
        assert len(events.seen) == seen


async def test_a_room_without_handlers_only_writes_by_default() -> None:
    events = Events()
    async with Postroom("memory://", observers=[events]) as room:
        await room.inbox().enqueue("t", "p", source="s", message_id="1")
        assert room.health() == {}
        assert {event.verb for event in events.seen} == {"put"}
