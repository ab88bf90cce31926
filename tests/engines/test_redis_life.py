"""What stands in Redis in the course of time: nothing vanishes, nothing is left behind, nothing is taken twice."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from postroom.spi import Box, ClaimRequest, Draft, Filter, Order, Purge, Retention, Settlement, State
from postroom.testing import FrozenClock
from tests.redis import keys_of, new_prefix, open_at, server
from tests.redis_invariants import Snapshot, complaints

PLAIN = Box("inbox", "plain")
FIFO = Box("inbox", "fifo", Order(fifo=True))
FOREVER = timedelta(days=10_000)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@pytest.fixture
def prefix() -> str:
    return new_prefix()


def drafts(count: int, **fields: Any) -> list[Draft]:
    return [Draft("s", str(n), "t", f"payload {n}", **fields) for n in range(count)]


@pytest.mark.parametrize("box", [PLAIN, FIFO])
def test_a_purged_box_leaves_nothing_but_its_sequence(prefix: str, box: Box) -> None:
    store = open_at(server(), "sync", prefix=prefix)
    puts = [
        *drafts(20, group="g", collapse_key="k", lifetime=seconds(60)),
        *(Draft("other", str(n), group=f"g{n}", due=None) for n in range(20)),
    ]
    store.put(box, puts)
    store.record(box, [Draft("s", "seen")])
    owner = uuid4()
    claimed = store.claim(box, ClaimRequest(owner, seconds(60), 5))
    store.settle(box, [Settlement.dead(message.claim, error="e") for message in claimed])
    while claimed := store.claim(box, ClaimRequest(owner, seconds(60), 7)):
        store.settle(box, [Settlement.done(message.claim) for message in claimed])
    with redis.Redis.from_url(server()) as client:
        counts = store.counts(box)
        assert complaints(client, prefix, box.key, counts=counts) == []
        assert counts[State.DONE]
        assert counts[State.DEAD]
        for state in (State.DONE, State.DEAD, State.SEEN):
            store.purge(box, Purge(state, seconds(0), 1000))
        assert keys_of(prefix) == {f"{{{prefix}}}:ids", f"{{{prefix}}}:boxes", f"{{{prefix}:{box.key}}}:meta"}
    store.close()


@pytest.mark.req("C-57")
def test_no_key_has_a_ttl_and_what_expires_is_dead(prefix: str) -> None:
    clock = FrozenClock()
    store = open_at(server(), "sync", prefix=prefix, clock=clock)
    store.put(PLAIN, [*drafts(3, lifetime=seconds(10)), Draft("s", "stays")])
    store.claim(PLAIN, ClaimRequest(uuid4(), FOREVER, 1))
    with redis.Redis.from_url(server()) as client:
        assert {client.ttl(key) for key in keys_of(prefix)} == {-1}
    clock.advance(5_000_000)
    store.reap(PLAIN, 100)
    found = {message.message_id: message for message in store.find(PLAIN, Filter())}
    assert {name: message.state for name, message in found.items()} == {
        "0": State.CLAIMED,
        "1": State.DEAD,
        "2": State.DEAD,
        "stays": State.WAITING,
    }
    assert found["1"].last_error == "expired"
    store.put(PLAIN, [Draft("s", "another")])  # a put cleans up: what is done, and nothing else
    assert len(store.find(PLAIN, Filter())) == 5
    store.close()


def test_done_messages_go_when_their_retention_has_passed_even_without_a_janitor(prefix: str) -> None:
    clock = FrozenClock()
    box = Box("inbox", "short", retention=Retention(done_age=seconds(100), age_from="completed_at"))
    store = open_at(server(), "sync", prefix=prefix, clock=clock)
    store.put(box, drafts(5))
    owner = uuid4()
    done = [Settlement.done(message.claim) for message in store.claim(box, ClaimRequest(owner, seconds(9), 5))]
    store.settle(box, done)
    clock.advance(99)
    store.put(box, [Draft("s", "young")])
    assert store.counts(box)[State.DONE] == 5
    clock.advance(1)
    store.put(box, [Draft("s", "later")])
    assert store.counts(box)[State.DONE] == 0
    assert {message.message_id for message in store.find(box, Filter())} == {"young", "later"}
    store.close()


def test_retention_does_not_shorten_the_memory_that_deduplicates(prefix: str) -> None:
    clock = FrozenClock()
    box = Box("inbox", "long", retention=Retention(done_age=seconds(10), dedup_window=seconds(1000)))
    store = open_at(server(), "sync", prefix=prefix, clock=clock)
    store.put(box, drafts(1))
    [message] = store.claim(box, ClaimRequest(uuid4(), seconds(9), 5))
    store.settle(box, [Settlement.done(message.claim)])
    clock.advance(999)
    store.put(box, [Draft("s", "later")])
    assert store.put(box, drafts(1))[0].status == "done"
    store.close()


@pytest.mark.req("RHI-162", "IBX-106", "OBX-095")
@pytest.mark.parametrize("box", [PLAIN, FIFO])
def test_claims_that_race_never_overlap(prefix: str, box: Box) -> None:
    """Each thread has a store of its own, as processes would."""
    total, threads = 3000, 6
    first = open_at(server(), "sync", prefix=prefix)
    for start in range(0, total, 500):
        first.put(box, [Draft("s", str(n), group=f"g{n % 40}") for n in range(start, start + 500)])
    begin = threading.Barrier(threads)

    def work(owner: UUID) -> list[tuple[str | None, int]]:
        store = open_at(server(), "sync", prefix=prefix)
        handled: list[tuple[str | None, int]] = []
        begin.wait(30)
        settlements: list[Settlement] = []
        while True:
            kept, messages = store.exchange(box, settlements, ClaimRequest(owner, seconds(300), 17))
            assert all(kept)
            if not messages and not settlements and store.counts(box)[State.WAITING] == 0:
                store.close()
                return handled
            handled += [(message.group, message.id) for message in messages]
            settlements = [Settlement.done(message.claim) for message in messages]

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(work, [uuid4() for _ in range(threads)]))
    ids = [id_ for handled in results for _, id_ in handled]
    assert len(ids) == len(set(ids)) == total
    with redis.Redis.from_url(server()) as client:
        assert complaints(client, prefix, box.key) == []
        assert Snapshot.take(client, prefix, box.key).counts() == dict.fromkeys(State, 0) | {State.DONE: total}
    first.close()


def test_ids_of_a_box_grow_over_its_blocks(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boxes take turns, and take blocks that are used up at once."""
    monkeypatch.setattr("postroom._stores.redis.runner.BLOCK", 10)
    store = open_at(server(), "sync", prefix=prefix)
    other = Box("outbox", "other")
    ids: dict[str, list[int]] = {PLAIN.key: [], other.key: []}
    for round_ in range(12):
        for box in (PLAIN, other):
            receipts = store.put(box, [Draft("s", f"{round_}/{n}") for n in range(7)])
            ids[box.key] += [receipt.id for receipt in receipts]
    for given in ids.values():
        assert given == sorted(given)
    every = ids[PLAIN.key] + ids[other.key]
    assert len(set(every)) == len(every)
    with redis.Redis.from_url(server()) as client:
        assert complaints(client, prefix, PLAIN.key) == []
        assert Snapshot.take(client, prefix, PLAIN.key).counts()[State.WAITING] == 84
    assert [message.id for message in store.find(PLAIN, Filter(limit=100))] == ids[PLAIN.key]
    big = store.put(PLAIN, [Draft("s", f"big/{n}") for n in range(25)])
    assert len({receipt.id for receipt in big}) == 25
    store.close()


def test_find_goes_through_a_long_box_page_by_page(prefix: str) -> None:
    store = open_at(server(), "sync", prefix=prefix)
    total = 6000
    store.put(PLAIN, [Draft("s", str(n), "even" if n % 2 == 0 else "odd") for n in range(total)])
    seen: list[str] = []
    after = 0
    while page := store.find(PLAIN, Filter(topic="odd", after=after, limit=700)):
        seen += [message.message_id for message in page]
        after = page[-1].id
    assert seen == [str(n) for n in range(1, total, 2)]
    assert len(store.find(PLAIN, Filter(limit=total + 1))) == total
    store.close()


async def test_topics_without_a_worker_do_not_hide_claimed_topics(prefix: str) -> None:
    """More than one script looks at."""
    store = open_at(server(), "async", prefix=prefix)
    many = [Draft("s", str(n), "unwanted") for n in range(21_000)]
    for start in range(0, len(many), 3000):
        await store.put(PLAIN, many[start : start + 3000])
    await store.put(PLAIN, [Draft("s", "wanted", "wanted")])
    [message] = await store.claim(PLAIN, ClaimRequest(uuid4(), seconds(60), 5, frozenset({"wanted"})))
    assert message.message_id == "wanted"
    await store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_store_may_be_used_by_one_loop_after_another(prefix: str) -> None:
    """The connections of the first cannot be closed any more when it has ended."""
    store = open_at(server(), "async", prefix=prefix)

    def elsewhere() -> int:
        return len(asyncio.run(store.put(PLAIN, drafts(1))))

    assert await asyncio.to_thread(elsewhere) == 1
    assert (await store.counts(PLAIN))[State.WAITING] == 1
    await store.close()
    gc.collect()
