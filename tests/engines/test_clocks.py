"""Order does not depend on whose clock is ahead: not where a server takes over whose time is behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom._connect import open_store
from postroom.spi import Box, ClaimRequest, Draft, Order, Settlement
from postroom.testing import FrozenClock
from postroom.testing.conformance.base import ALICE, names, seconds
from tests.postgres import clean_database
from tests.redis import new_prefix, server

BOX = Box("inbox", "box", Order(fifo=True))
AHEAD = seconds(10)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Any]:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/clock.db",
        "postgres": clean_database,
        "redis": server,
    }
    options: Any = {"prefix": new_prefix()} if request.param == "redis" else {"deploy_schema": True}
    store = open_store(urls[request.param](), mode="sync", clock=clock, **options)
    yield store
    store.close()


def claim(store: Any) -> list[Any]:
    found: list[Any] = store.claim(BOX, ClaimRequest(ALICE, seconds(60), 10))
    return found


def put(store: Any, *message_ids: str, **options: Any) -> None:
    store.put(BOX, [Draft("s", message_id, group="g", **options) for message_id in message_ids])


def test_nothing_is_overtaken_when_the_clock_goes_back(store: Any, clock: FrozenClock) -> None:
    put(store, "1", "2")
    clock.advance(-AHEAD)
    put(store, "3")
    assert claim(store) == []
    clock.advance(AHEAD)
    assert names(claim(store)) == ["1", "2", "3"]


def test_nor_behind_a_front_that_is_older(store: Any, clock: FrozenClock) -> None:
    clock.advance(-AHEAD)
    put(store, "1")
    clock.advance(AHEAD)
    put(store, "2", "3")
    clock.advance(-AHEAD)
    assert names(claimed := claim(store))[:1] == ["1"]
    assert names(claimed) == ["1", "2", "3"][: len(claimed)]


def test_nor_where_a_due_time_has_come(store: Any, clock: FrozenClock) -> None:
    """Once it has stood in line, and waits for who is ahead, it has a place like all others."""
    put(store, "1")
    put(store, "2", due=clock.now() + seconds(1))
    put(store, "3")
    [first, third] = claim(store)
    assert names([first, third]) == ["1", "3"]
    clock.advance(2)
    assert claim(store) == []
    store.settle(BOX, [Settlement.release(message.claim) for message in (first, third)])
    clock.advance(-1.5)  # 2 is not due again
    assert claim(store) == []
    clock.advance(1.5)
    assert names(claim(store)) == ["1", "2", "3"]
