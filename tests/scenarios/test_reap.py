"""A reap frees every lease that has ended, wherever its message stands."""

from __future__ import annotations

import pytest

from postroom import NewMessage, Postroom, State
from postroom.testing import FrozenClock
from tests.scenarios.support import LEASE, STORES, ids, owner, put

WAITING = 12_000


@pytest.mark.parametrize("store", [*STORES, "psycopg"])
async def test_leases_behind_many_that_wait(still: Postroom, clock: FrozenClock) -> None:
    inbox = still.inbox()
    await inbox.enqueue_many(
        [NewMessage("many", "x", source="s", message_id=f"w{number}") for number in range(WAITING)]
    )
    clock.advance(1)
    await put(inbox, 1, 2, 3, topic="few")
    assert ids(await inbox.claim(owner(), LEASE, topics=["few"])) == ["1", "2", "3"]
    clock.advance(LEASE + 1)
    freed = 0
    for _ in range(10):
        freed += (await inbox.reap()).freed
    assert freed == 3
    assert [message.state for message in await inbox.find(topic="few")] == [State.WAITING] * 3
