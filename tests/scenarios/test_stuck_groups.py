"""A FIFO group goes on when its workers claim by topic and one of them crashes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom import Inbox, Postroom
from postroom.testing import FrozenClock
from tests.scenarios.support import LEASE, ids, owner, put


async def drain_by_topic(inbox: Inbox, *topics: str, reaps: bool) -> list[str]:
    """Workers for one topic each claim in turn and ack what they get."""
    order: list[str] = []
    for _ in range(4):
        for topic in topics:
            worker = owner()
            claimed = await inbox.claim(worker, LEASE, topics=[topic])
            assert all(await inbox.ack(worker, claimed))
            order += ids(claimed)
            if reaps:
                await inbox.reap()
    return order


@pytest.mark.parametrize("reaps", [True, False], ids=["reaps", "no reap"])
@pytest.mark.parametrize("first", ["t", "u"])
async def test_the_head_was_not_due_when_the_next_was_claimed(
    still: Postroom, clock: FrozenClock, *, reaps: bool, first: str
) -> None:
    inbox = still.inbox(order="fifo")
    await put(inbox, 1, topic="t", group="g", due=clock.now() + timedelta(seconds=5))
    await put(inbox, 2, topic="u", group="g")
    assert ids(await inbox.claim(owner(), LEASE, topics=["u"])) == ["2"]
    clock.advance(6)
    assert await inbox.claim(owner(), LEASE, topics=["t"]) == []  # the group is held
    clock.advance(LEASE + 1)  # the worker of 2 has crashed

    topics = ("t", "u") if first == "t" else ("u", "t")
    assert await drain_by_topic(inbox, *topics, reaps=reaps) == ["1", "2"]


@pytest.mark.parametrize("reaps", [True, False], ids=["reaps", "no reap"])
@pytest.mark.parametrize("first", ["t", "u"])
async def test_the_head_was_dead_when_the_next_was_claimed(
    still: Postroom, clock: FrozenClock, *, reaps: bool, first: str
) -> None:
    inbox = still.inbox(order="fifo")
    worker = owner()
    await put(inbox, 1, topic="t", group="g")
    [head] = await inbox.claim(worker, LEASE, topics=["t"])
    await inbox.fail(worker, [head], "bad")
    await put(inbox, 2, topic="u", group="g")
    assert ids(await inbox.claim(owner(), LEASE, topics=["u"])) == ["2"]
    assert len(await inbox.replay()) == 1
    assert await inbox.claim(owner(), LEASE, topics=["t"]) == []  # the group is held
    clock.advance(LEASE + 1)  # the worker of 2 has crashed

    topics = ("t", "u") if first == "t" else ("u", "t")
    assert await drain_by_topic(inbox, *topics, reaps=reaps) == ["1", "2"]
