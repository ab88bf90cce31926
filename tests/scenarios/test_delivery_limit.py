"""The delivery limit ends a message that kills its workers, and only that one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom import Inbox, Message, Postroom, State
from postroom._kernel.policy import DELIVERY_LIMIT
from postroom.testing import FrozenClock
from tests.scenarios.conftest import OpenRoom
from tests.scenarios.support import LEASE, SOON, eventually, ids, owner, put, states

MOST = 3
"""Leases in a row that may end without an outcome."""


async def put_each(inbox: Inbox, *numbers: int) -> None:
    """Each in a group of its own."""
    for number in numbers:
        await put(inbox, number, group=f"g{number}")


async def crash(inbox: Inbox, clock: FrozenClock, batch_size: int = 10) -> list[str]:
    """A worker claims and ends without an outcome."""
    claimed = await inbox.claim(owner(), LEASE, batch_size)
    clock.advance(LEASE + 1)
    return ids(claimed)


@pytest.mark.parametrize("reaps", [True, False], ids=["reaps", "no reap"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_message_whose_workers_lose_their_leases_dies_by_default(
    still: Postroom, clock: FrozenClock, *, order: Any, reaps: bool
) -> None:
    inbox = still.inbox(order=order)
    await put(inbox, 1, group="g")
    deliveries = 0
    while deliveries < 30 and await crash(inbox, clock):
        deliveries += 1
        if reaps:
            await inbox.reap()
    message = await inbox.get("1")
    assert (message.state, message.last_error) == (State.DEAD, DELIVERY_LIMIT)
    assert 1 < deliveries < 30


GROUPS: dict[str, Any] = {
    "no order": lambda _: None,
    "one group": lambda _: "g",
    "ten groups": lambda number: f"g{number // 2}",
    "own groups": lambda number: f"g{number}",
}


@pytest.mark.parametrize("reaps", [True, False], ids=["reaps", "no reap"])
@pytest.mark.parametrize("poison", [0, 7, 19])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("limit", ["max_deliveries", "max_lost_leases"])
async def test_what_was_claimed_beside_a_poison_message_is_handled(
    still: Postroom, clock: FrozenClock, *, groups: str, poison: int, reaps: bool, limit: str
) -> None:
    """20 messages, workers that claim 10 at once and crash whenever the poison message is among them."""
    options: Any = {limit: MOST}
    inbox = still.inbox(order="none" if groups == "no order" else "fifo", **options)
    for number in range(20):
        await put(inbox, number, group=GROUPS[groups](number))
    for _ in range(150):
        worker = owner()
        claimed = await inbox.claim(worker, LEASE, 10)
        if str(poison) in ids(claimed):
            clock.advance(LEASE + 1)
            if reaps:
                await inbox.reap()
        elif claimed:
            assert all(await inbox.ack(worker, claimed))
        elif set((await states(inbox)).values()) <= {State.DONE, State.DEAD}:
            break
    found = await states(inbox)
    assert [name for name, state in found.items() if state is not State.DONE] == [str(poison)]
    dead = await inbox.get(str(poison))
    assert (dead.state, dead.last_error) == (State.DEAD, DELIVERY_LIMIT)


@pytest.mark.parametrize("reaps", [True, False], ids=["reaps", "no reap"])
@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_suspect_is_claimed_alone(still: Postroom, clock: FrozenClock, *, order: Any, reaps: bool) -> None:
    inbox = still.inbox(order=order, max_lost_leases=2)  # after the first, the next is the last
    await put_each(inbox, *range(5))
    suspects = set(await crash(inbox, clock))
    assert len(suspects) == 5
    await put_each(inbox, *range(5, 10))
    if reaps:
        await inbox.reap()
    claims: list[list[str]] = []
    while claimed := await inbox.claim(worker := owner(), LEASE, 10):
        assert all(await inbox.ack(worker, claimed))
        claims.append(ids(claimed))
    assert sorted(map(len, claims)) == [1, 1, 1, 1, 1, 5]
    assert {each for claimed in claims if len(claimed) == 1 for each in claimed} == suspects


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_one_lost_lease_makes_no_suspect(still: Postroom, clock: FrozenClock, *, order: Any) -> None:
    """A worker that is stopped hard costs nothing but the time of its lease."""
    inbox = still.inbox(order=order)
    await put_each(inbox, *range(5))
    assert await crash(inbox, clock) == await crash(inbox, clock) == ["0", "1", "2", "3", "4"]
    assert [len(await inbox.claim(owner(), LEASE, 10)) for _ in range(6)] == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("order", ["none", "fifo"])
@pytest.mark.parametrize("outcome", ["release", "abandon"])
async def test_what_ends_with_an_outcome_is_no_lost_lease(
    still: Postroom, clock: FrozenClock, *, order: Any, outcome: str
) -> None:
    inbox = still.inbox(order=order, max_lost_leases=MOST)
    await put(inbox, 1, group="g")
    for _ in range(2 * MOST):
        worker = owner()
        claimed = await inbox.claim(worker, LEASE)
        assert ids(claimed) == ["1"]
        assert all(await getattr(inbox, outcome)(worker, claimed))
        clock.advance(LEASE + 60)
    assert (await inbox.get("1")).state is State.WAITING


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_an_outcome_between_lost_leases_begins_the_count_anew(
    still: Postroom, clock: FrozenClock, *, order: Any
) -> None:
    inbox = still.inbox(order=order, max_lost_leases=MOST)
    await put(inbox, 1, group="g")
    for _ in range(3):
        for _ in range(MOST - 1):
            assert await crash(inbox, clock) == ["1"]
        worker = owner()
        claimed = await inbox.claim(worker, LEASE)
        assert ids(claimed) == ["1"]
        assert all(await inbox.abandon(worker, claimed, last_error="failed"))
        clock.advance(60)
    message = await inbox.get("1")
    assert (message.state, message.attempt) == (State.WAITING, 3)


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_worker_handles_a_suspect_while_nothing_else_is_in_hand(open_room: OpenRoom, *, order: Any) -> None:
    """What it kills is then only its own worker, and what it takes with it is nothing."""
    room = await open_room()
    inbox = room.inbox(order=order, max_lost_leases=2, concurrency=4, poll_interval=SOON, max_poll_interval=SOON)
    await put_each(inbox, *range(4))
    assert len(await inbox.claim(owner(), 0.001, 10)) == 4
    beside: dict[str, int] = {}

    @inbox.handler("t")
    async def handle(message: Message[str]) -> None:
        await asyncio.sleep(0.01)
        if message.lost_leases:
            beside[message.message_id] = room.health()["inbox:inbox"].in_hand

    await put_each(inbox, *range(4, 30))
    await room.start()

    async def all_are_done() -> bool:
        return (await inbox.counts())[State.DONE] == 30

    assert await eventually(all_are_done, 8), f"{await inbox.counts()}"
    assert beside == dict.fromkeys("0123", 1)
