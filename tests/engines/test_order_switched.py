"""A box whose order was changed while messages stood in it: a deployment does that, one process after the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroom._connect import open_store
from postroom._stores.memory import SyncMemoryStore
from postroom.spi import Box, ClaimRequest, Delivery, Draft, Order, Settlement, State
from postroom.testing import FrozenClock
from tests.postgres import clean_database

ALICE, BOB = UUID(int=1), UUID(int=2)
FIFO, PLAIN = Box("inbox", "b", Order(fifo=True)), Box("inbox", "b")
LEASE = timedelta(seconds=30)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, clock: FrozenClock, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield SyncMemoryStore(clock=clock)
        return
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else clean_database()
    made = open_store(url, mode="sync", clock=clock, deploy_schema=True)
    yield made
    made.close()


def put(store: Any, *names: str) -> None:
    for name in names:
        store.put(FIFO, [Draft("s", name, "t", "p", group="g")])


def claim(store: Any, box: Box, owner: UUID, limit: int = 10) -> list[Any]:
    claimed: list[Any] = store.claim(box, ClaimRequest(owner, LEASE, limit))
    return claimed


def names(messages: list[Any]) -> list[str]:
    return [message.message_id for message in messages]


def test_what_slept_in_a_line_is_handled_without_one(store: Any) -> None:
    store.put(FIFO, [Draft("s", name, "t", "p", group="g") for name in "12345"])
    claimed, done = claim(store, FIFO, ALICE, 1), []
    while claimed:
        done += names(claimed)
        successes = [Settlement.done(message.claim) for message in claimed]
        if hasattr(store, "exchange"):
            _, claimed = store.exchange(PLAIN, successes, ClaimRequest(ALICE, LEASE, 1))
        else:
            store.settle(PLAIN, successes)
            claimed = claim(store, PLAIN, ALICE, 1)
    assert done == list("12345")


def test_it_wakes_up_when_the_front_is_given_up(store: Any, clock: FrozenClock) -> None:
    limited = Box("inbox", "b", Order(), Delivery(max_deliveries=1))
    store.put(FIFO, [Draft("s", name, "t", "p", group="g") for name in "12"])
    claim(store, FIFO, ALICE, 1)
    clock.advance(LEASE * 2)
    assert names(claim(store, limited, ALICE)) == ["2"]
    assert store.counts(limited)[State.DEAD] == 1


def test_a_line_is_held_by_a_claim_that_was_made_without_order(store: Any) -> None:
    put(store, "1")
    assert names(claim(store, PLAIN, ALICE)) == ["1"]
    put(store, "2")
    assert names(claim(store, FIFO, BOB)) == []


def test_what_is_given_back_ends_a_batch_that_was_claimed_without_order(store: Any) -> None:
    put(store, "1", "2", "3")
    first, *others = claim(store, PLAIN, ALICE)
    assert store.settle(FIFO, [Settlement.release(first.claim)]) == [True]
    assert names(claim(store, FIFO, BOB)) == ["1", "2", "3"]
    assert not any(store.settle(FIFO, [Settlement.done(message.claim) for message in others]))
