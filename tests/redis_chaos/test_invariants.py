"""The checker itself: whatever is broken in a box, it finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from tools.servers.redis import RedisServer

from postroom import NewMessage, OwnerToken, Postroom
from postroom._stores.redis.layout import KEYS, box_keys
from postroom.spi import Box, Draft, JoinDraft, JoinWait, Order
from tests.redis import open_at
from tests.redis_chaos.workload import new_prefix
from tests.redis_invariants import Snapshot, complaints

KEY = "outbox:lines"
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
async def prefix(server: RedisServer) -> AsyncIterator[str]:
    """Of a box with messages in all states."""
    name = new_prefix()
    store = open_at(server.url(), "async", prefix=name)
    async with Postroom(store=store) as room:
        box = room.outbox("lines", order="fifo")
        owner = OwnerToken.new()
        await box.enqueue_many([_message(number) for number in range(12)])
        await box.enqueue("t", 1, source="other", message_id="0", group="other")
        await box.enqueue("t", 1, source="s", message_id="expires", group="e", due=LATER, expires=LATER)
        await box.enqueue("t", 1, source="s", message_id="collapses", group="c", due=LATER, collapse_key="price")
        await store.record(box.box, [Draft("s", "seen")])
        await box.ack(owner, await box.claim(owner, 60, 1))
        await box.fail(owner, await box.claim(owner, 60, 1), "bad")
        await box.claim(owner, 60, 1)
        assert set((await box.counts()).values()) & {0} == set()
        await _add_joins(store)
        yield name


async def _add_joins(store: Any) -> None:
    """Adds a pending and an ended join."""
    box = Box("outbox", "lines", order=Order(fifo=True))
    for status in ("pending", "cancelled"):
        join = uuid4()
        await store.start_join(box, JoinDraft(join, "tenant", 2))
        await store.put_wait(box, Draft("s", str(join), "wait"), JoinWait(join))
        await store.put(box, [Draft("s", f"step-{status}", join=join)])
        if status == "cancelled":
            await store.cancel_join(box, join)


def _message(number: int) -> NewMessage:
    return NewMessage("t", number, source="s", message_id=str(number), group=f"g{number % 4}")


def _some(client: redis.Redis, key: str) -> bytes:
    """A field or a member."""
    kind = client.type(key)
    found: list[bytes] = client.hkeys(key) if kind == b"hash" else client.zrange(key, 0, 0)  # type: ignore[assignment]
    return found[0]


def test_a_sound_box_has_no_complaints(server: RedisServer, prefix: str) -> None:
    with redis.Redis.from_url(server.url()) as client:
        assert complaints(client, prefix, KEY) == []
        counts = Snapshot.take(client, prefix, KEY).counts()
        assert complaints(client, prefix, KEY, counts=counts) == []
        first = next(iter(counts))
        assert complaints(client, prefix, KEY, counts={**counts, first: 99})


@pytest.mark.parametrize("name", [name for name in KEYS if name != "meta"])
def test_something_missing_is_noticed(server: RedisServer, prefix: str, name: str) -> None:
    with redis.Redis.from_url(server.url()) as client:
        keys = dict(zip(KEYS, box_keys(prefix, KEY), strict=True))
        key = keys[name].decode()
        remove: Any = client.hdel if client.type(key) == b"hash" else client.zrem
        # A waiting message may well have no record in `states`; a done one must.
        assert remove(key, _some(client, keys["done"].decode() if name == "states" else key)) == 1
        assert complaints(client, prefix, KEY)


@pytest.mark.parametrize("name", ["seen", "pending", "captured", "expiring", "done", "dlq"])
def test_something_that_should_not_be_there_is_noticed(server: RedisServer, prefix: str, name: str) -> None:
    """A message in a second place."""
    with redis.Redis.from_url(server.url()) as client:
        keys = dict(zip(KEYS, box_keys(prefix, KEY), strict=True))
        other = "done" if name != "done" else "dlq"
        client.zadd(keys[name], {_some(client, keys[other].decode()): 1})
        assert complaints(client, prefix, KEY)


def test_an_id_past_the_sequence_is_noticed(server: RedisServer, prefix: str) -> None:
    with redis.Redis.from_url(server.url()) as client:
        client.hset(box_keys(prefix, KEY)[0].decode(), "sequence", "0")
        assert complaints(client, prefix, KEY)
