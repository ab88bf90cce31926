"""Random histories of a guard, on each store and on the memory store, compared after each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom._connect import open_store
from postroom._stores.memory import SyncMemoryStore
from postroom.spi import Begin, Begun, Box, Claim, Draft, Filter, Purge, Result, Retention, Settlement, State
from postroom.testing import FrozenClock
from tests.postgres import clean_database, with_driver
from tests.redis import new_prefix, server

KEYS, OWNERS = ("1", "2", "3"), (UUID(int=1), UUID(int=2), UUID(int=3))
SECOND = timedelta(seconds=1)
BOXES = (
    Box("guard", "plain", retention=Retention(age_from="completed_at")),
    Box("guard", "window", retention=Retention(dedup_window=60 * SECOND, age_from="completed_at")),
)

begins = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(OWNERS),
    st.sampled_from([None, 10 * SECOND, 30 * SECOND]),
    st.sampled_from([None, b"1", b"2"]),
)
steps = st.one_of(
    st.tuples(st.just("begin"), st.lists(begins, min_size=1, max_size=4)),
    st.tuples(
        st.just("settle"),
        st.lists(
            st.tuples(st.integers(0, 20), st.sampled_from(["done", "result", "release", "dead"])),
            min_size=1,
            max_size=3,
        ),
    ),
    st.tuples(st.just("renew"), st.lists(st.integers(0, 20), min_size=1, max_size=3)),
    st.tuples(st.just("elapse"), st.sampled_from([1, 5, 11, 31, 61])),
    st.tuples(st.sampled_from(["reap", "replay", "purge"]), st.none()),
    st.tuples(st.just("mark"), st.sampled_from(KEYS)),
)


class Pair:
    """The memory store and another one, with the same history."""

    def __init__(self, other: Any, clock: FrozenClock, box: Box) -> None:
        self.stores: tuple[Any, Any] = (SyncMemoryStore(clock=clock), other)
        self.clock = clock
        self.box = box
        self.claims: list[tuple[Claim, Claim]] = []

    def both(self, verb: str, *args: Any) -> list[Any]:
        return [getattr(store, verb)(self.box, *args) for store in self.stores]

    def apply(self, step: str, given: Any) -> None:
        getattr(self, f"_{step}")(given)
        records = [[_record(each) for each in store.find(self.box, Filter(limit=1000))] for store in self.stores]
        assert records[0] == records[1]

    def _begin(self, given: list[tuple[str, UUID, timedelta | None, bytes | None]]) -> None:
        items = [Begin(Draft("h", key, "t", hash=hash_), owner, lease) for key, owner, lease, hash_ in given]
        expected, actual = self.both("begin", items)
        assert list(map(_seen, actual)) == list(map(_seen, expected))
        for one, other in zip(expected, actual, strict=True):
            if one.claim is not None and (one.claim, other.claim) not in self.claims:
                self.claims.append((one.claim, other.claim))

    def _settle(self, given: list[tuple[int, str]]) -> None:
        if self.claims:
            picked = [(self.claims[number % len(self.claims)], verdict) for number, verdict in given]
            results = [
                store.settle(self.box, [_settlement(pair[place], verdict) for pair, verdict in picked])
                for place, store in enumerate(self.stores)
            ]
            assert list(results[0]) == list(results[1])

    def _renew(self, given: list[int]) -> None:
        if self.claims:
            picked = [self.claims[number % len(self.claims)] for number in given]
            results = [
                store.renew(self.box, [pair[place] for pair in picked], 20 * SECOND)
                for place, store in enumerate(self.stores)
            ]
            assert list(results[0]) == list(results[1])

    def _elapse(self, given: int) -> None:
        self.clock.advance(given)

    def _reap(self, _: None) -> None:
        expected, actual = self.both("reap", 100)
        assert actual == expected

    def _replay(self, _: None) -> None:
        expected, actual = self.both("replay", Filter())
        assert sorted(actual) == sorted(expected)

    def _purge(self, _: None) -> None:
        expected, actual = self.both("purge", Purge(State.DONE, 30 * SECOND))
        assert actual == expected

    def _mark(self, given: str) -> None:
        expected, actual = self.both("mark", [Draft("h", given).key], "processed")
        assert actual == expected


def _settlement(claim: Claim, verdict: str) -> Settlement:
    return {
        "done": Settlement.done(claim),
        "result": Settlement.done(claim, Result("[1]", "json")),
        "release": Settlement.release(claim),
        "dead": Settlement.dead(claim, error="bad", counts=True),
    }[verdict]


def _seen(begun: Begun) -> tuple[object, ...]:
    """A result without what stores choose: ids and fences."""
    claim = begun.claim
    return (*begun._replace(claim=None), None if claim is None else (claim.owner, claim.until))


def _record(message: Any) -> tuple[object, ...]:
    claim = None if message.claim is None else (message.claim.owner, message.claim.until)
    return (*message._replace(id=0, claim=None), claim)


@contextmanager
def opened(store: str, clock: FrozenClock) -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {}
        if store == "redis":
            url, options = server(), {"prefix": new_prefix()}
        elif store == "psycopg":
            url = with_driver(clean_database(), "psycopg")
        else:
            url, options = f"sqlite:///{Path(folder)}/history.db", {"deploy_schema": True}
        made = open_store(url, mode="sync", clock=clock, **options)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.req("CEB-002", "CEB-008", "CEB-017", "CEB-020")
@pytest.mark.parametrize("store", ["sqlite3", "psycopg", "redis"])
@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.name)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(steps, max_size=25))
def test_a_store_does_what_the_memory_store_does(store: str, box: Box, history: list[tuple[str, Any]]) -> None:
    clock = FrozenClock()
    with opened(store, clock) as other:
        pair = Pair(other, clock, box)
        for step, given_ in history:
            pair.apply(step, given_)
