"""Notifications from one store to another: on one server, and on a cluster by sharded channels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
import redis

from postroom import Message, Postroom
from postroom._stores.redis.layout import channel
from postroom.spi import Box, ClaimRequest, Draft, Filter, Order, Settlement, Waker
from postroom.testing.conformance.base import seconds
from tests.redis import cluster, new_prefix, open_at, server
from tests.runtime.support import soon

BOX = Box("inbox", "box")
OTHER = Box("inbox", "other")
ASK = ClaimRequest(uuid4(), seconds(30), 10)
PLACES: dict[str, Callable[[], str]] = {"redis": server, "cluster": cluster}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param]()


@pytest.fixture
def prefix() -> str:
    return new_prefix()


@pytest.fixture
async def listening(place: str, prefix: str) -> AsyncIterator[Any]:
    """A store that has claimed from both boxes and is subscribed to them."""
    store = open_at(place, "async", prefix=prefix)
    assert isinstance(store, Waker) is store.features.notify is True
    for box in (BOX, OTHER):
        await store.claim(box, ASK)
    assert await soon(store.wait()) == frozenset(), "after a new beginning, something may have been missed"
    yield store
    await store.close()


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_a_put_of_another_store_is_notified(place: str, prefix: str, listening: Any, mode: Any) -> None:
    other = open_at(place, mode, prefix=prefix)
    waiting = asyncio.create_task(listening.wait())
    if mode == "async":
        await other.put(BOX, [Draft("s", "1")])
        await other.close()
    else:
        await asyncio.to_thread(other.put, BOX, [Draft("s", "1")])
        other.close()
    assert await soon(waiting) == {BOX.key}


async def test_a_box_that_is_used_later_is_notified_too(place: str, prefix: str, listening: Any) -> None:
    new = Box("outbox", "new")
    waiting = asyncio.create_task(listening.wait())
    await listening.claim(new, ASK)
    notified = await soon(waiting) if place.startswith("redis+cluster") else None
    assert not notified
    if notified is not None:
        waiting = asyncio.create_task(listening.wait())
    other = open_at(place, "async", prefix=prefix)
    await other.put(new, [Draft("s", "1")])
    assert await soon(waiting) == {new.key}
    await other.close()


async def test_several_boxes_are_notified(place: str, prefix: str, listening: Any) -> None:
    other = open_at(place, "async", prefix=prefix)
    for box in (BOX, OTHER):
        await other.put(box, [Draft("s", "1")])
    notified: set[str] = set()
    while notified != {BOX.key, OTHER.key}:
        notified |= await soon(listening.wait())
    await other.close()


async def test_a_lost_connection_raises_and_the_next_wait_subscribes_again(prefix: str) -> None:
    store = open_at(f"{server()}?client_name={prefix}", "async", prefix=prefix)
    await store.claim(BOX, ASK)
    await soon(store.wait())
    waiting = asyncio.create_task(store.wait())
    await asyncio.sleep(0)
    with redis.Redis.from_url(server()) as client:
        listeners: Any = client.client_list(_type="pubsub")
        for each in listeners:
            if each["name"] == prefix:
                client.client_kill_filter(_id=each["id"])
    with pytest.raises(ConnectionError):
        await soon(waiting)
    assert await soon(store.wait()) == frozenset()
    await store.put(BOX, [Draft("s", "1")])
    assert await soon(store.wait()) == {BOX.key}
    await store.close()


async def test_only_claimable_messages_are_notified_once_per_call(prefix: str) -> None:
    fifo = Box("inbox", "fifo", Order(fifo=True))
    with redis.Redis.from_url(server()) as client, client.pubsub() as subscription:
        subscription.subscribe(channel(prefix, BOX.key, sharded=False))

        def published() -> list[str]:
            """Returns everything published so far. Publishes an end mark, which comes last."""
            client.publish(channel(prefix, BOX.key, sharded=False), "the end")
            found: list[str] = []
            while True:
                message: Any = subscription.get_message(timeout=10)
                assert message is not None
                if message["type"] == "message":
                    if message["data"] == b"the end":
                        return found
                    found.append(message["data"].decode())

        store = open_at(server(), "async", prefix=prefix)
        await store.put(BOX, [Draft("s", str(n)) for n in range(100)])
        assert published() == [BOX.key]
        [first, *_] = await store.claim(BOX, ASK)
        later = first.first_seen + seconds(3600)
        await store.put(BOX, [Draft("s", "later", due=later)])
        await store.put(BOX, [Draft("s", "5")])  # a duplicate
        await store.record(BOX, [Draft("s", "seen")])
        assert published() == []
        await store.put(fifo, [Draft("s", str(n), group="g") for n in range(2)])
        assert published() == [fifo.key]
        await store.put(fifo, [Draft("s", "behind", group="g")])
        assert published() == []
        [front] = await store.claim(fifo, ASK._replace(limit=1))
        await store.settle(fifo, [Settlement.retry(front.claim, delay=seconds(3600))])
        assert published() == []
        await store.cancel(fifo, Filter(keys=(front.key,)))
        assert published() == [fifo.key], "the next of its group can be claimed now"
        await store.settle(BOX, [Settlement.dead(first.claim, error="e")])
        await store.replay(BOX, Filter())
        assert published() == [BOX.key]
        await store.close()
        silent = open_at(server(), "async", prefix=prefix, notify=False)
        assert not silent.features.notify
        await silent.put(OTHER, [Draft("s", "1")])
        assert published() == []
        await silent.close()


async def test_a_worker_need_not_wait_for_its_next_poll(place: str, prefix: str) -> None:
    """Its first pause would be longer than the test."""
    done = asyncio.Event()
    worker = Postroom(place, prefix=prefix)
    inbox = worker.inbox("work", poll_interval=seconds(600), max_poll_interval=seconds(600))

    @inbox.handler("t")
    async def handle(_message: Message[str]) -> None:
        done.set()

    sender = Postroom(place, prefix=prefix)
    async with worker:
        for number in range(3):
            done.clear()
            await sender.inbox("work").enqueue("t", "x", source="s", message_id=str(number))
            await soon(done.wait())
    await sender.close()
