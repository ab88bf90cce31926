"""The places of a server: calls wait for them in order, visits leave one free, and stores are closed in parallel."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from postroom import Message
from postroom._many.tenant import OpenStore
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, becomes, databases
from tests.runtime.support import Gauge, put, soon


def opened(room: Any, key: str) -> OpenStore:
    """Returns the store object of an open store."""
    found = room.router._registry.get(key).opened
    assert isinstance(found, OpenStore)
    return found


async def others_run() -> None:
    """Lets the other tasks run until they wait for an event."""
    for _ in range(10):
        await asyncio.sleep(0)


class Closings:
    """Replaces `close` of open stores. Each call waits until `go_on` is set."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.first, self.go_on = asyncio.Event(), asyncio.Event()

    def replace(self, store: Any, *, waits: bool = True) -> None:
        close = store.close

        async def closing() -> None:
            self.begun.append(store.name)
            self.loops.append(asyncio.get_running_loop())
            if waits:
                self.first.set()
                await self.go_on.wait()
            await close()
            self.ended.append(store.name)

        store.close = closing


# -- the queue of a server ---------------------------------------------------------------------------------------


async def test_calls_get_places_in_order(open_room: OpenRoom, urls: dict[str, str]) -> None:
    """A call that comes later does not overtake, even if its store is still open."""
    room, order = open_room(urls, open_stores=1), list[str]()

    async def enqueue(key: str, message_id: str) -> None:
        await put(room.router.inbox(key), message_id)
        order.append(key)

    async with room.router.store("acme").transaction():
        waiting = [asyncio.create_task(enqueue(key, "1")) for key in ("crow", "bolt")]
        await others_run()
    await soon(enqueue("acme", "1"))
    await soon(asyncio.gather(*waiting))
    assert order == ["crow", "bolt", "acme"]


async def test_calls_of_one_store_share_its_place(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls, open_stores=2)
    ended = asyncio.Event()

    async def hold(key: str) -> None:
        async with room.router.store(key).transaction():
            await ended.wait()

    async with room.router.store("acme").transaction():
        async with room.router.store("bolt").transaction():
            holding = asyncio.create_task(hold("crow"))
            waiting = [asyncio.create_task(room.router.inbox("crow").find()) for _ in range(2)]
            await others_run()
        await soon(asyncio.gather(*waiting))
        ended.set()
        await soon(holding)


def test_threads_get_places_in_order(tmp_path: Path) -> None:
    order: list[str] = []
    with SyncPostroom(stores=databases("sqlite", tmp_path), open_stores=1) as room:
        stores = room._tenants.stores  # type: ignore[union-attr]

        def find() -> None:
            room.router.inbox("bolt").find()
            order.append("bolt")

        thread = threading.Thread(target=find)
        with room.router.store("acme").transaction():
            thread.start()
            asyncio.run(becomes(lambda: stores.has_waiting(room.router._registry.get("acme"))))
        room.router.inbox("acme").find()
        order.append("acme")
        thread.join(10)
    assert order == ["bolt", "acme"]


async def test_a_removed_store_is_not_waited_for(open_room: OpenRoom, urls: dict[str, str]) -> None:
    stores = dict(urls)
    room = open_room(discover=lambda: stores, open_stores=1)
    await room.refresh()
    async with room.router.store("acme").transaction():
        waiting = asyncio.create_task(put(room.router.inbox("bolt"), "1"))
        await others_run()
        del stores["bolt"]
        await room.refresh()
        with pytest.raises(LookupError):
            await soon(waiting, 5)


# -- visits ------------------------------------------------------------------------------------------------------


async def test_a_visit_ends_when_a_call_waits(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    room = open_room(urls, open_stores=1)
    calls: list[asyncio.Task[None]] = []
    before: list[int] = []

    async def enqueue() -> None:
        await put(room.router.inbox("bolt"), "1", topic="other")
        before.append(len(handled.seen))

    @room.inbox(concurrency=1, batch_size=1).handler("t")
    async def handle(message: Message[Any]) -> None:
        if not calls:
            calls.append(asyncio.create_task(enqueue()))
            await others_run()
        handled.note(message)

    await put(room.router.inbox("acme"), *range(50))
    async with room:
        await handled.until(("acme", "49"), seconds=30)
        await soon(calls[0])
    assert before[0] <= 3


async def test_visits_share_few_places(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    """A store that waits for a place gets one after a batch of the others, and not when they are empty."""
    room = open_room(urls, open_stores=2)
    room.inbox(concurrency=3, batch_size=1).handler("t")(handled)
    for key in KEYS:
        await put(room.router.inbox(key), *range(30))
    async with room:
        await handled.until(*((key, "29") for key in KEYS), seconds=30)
    stores = handled.stores
    first_end = min(len(stores) - stores[::-1].index(key) for key in KEYS)
    assert set(stores[:first_end]) == set(KEYS), "all have begun before one is empty"


async def test_visits_leave_a_place_for_verbs(
    open_room: OpenRoom, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom._many.servers.WAIT_SECONDS", 1)
    room, visited = open_room(urls, open_stores=2), Gauge()

    @room.inbox(concurrency=2).handler("t")
    async def handle(message: Message[Any]) -> None:
        with visited:
            await others_run()
            await put(room.router.inbox("crow"), message.store, topic="other")

    for key in ("acme", "bolt"):
        await put(room.router.inbox(key), "1")
    await room.drain(raise_errors=True)
    assert visited.most == 1


async def test_a_handler_that_gets_no_place(
    open_room: OpenRoom, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is released, and no attempt is counted."""
    monkeypatch.setattr("postroom._many.servers.WAIT_SECONDS", 0.05)
    room = open_room(urls, open_stores=1)

    @room.inbox().handler("t")
    async def handle(message: Message[Any]) -> None:
        await put(room.router.inbox("bolt"), "1")

    await put(room.router.inbox("acme"), "1")
    assert await room.drain() == 1
    [message] = await room.router.inbox("acme").find()
    assert (message.state, message.attempt) == ("waiting", 0)


# -- closing -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_closes_all_that_it_has_removed(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room, closings = open_room(urls, open_stores=2), Closings()
    for key in ("acme", "bolt"):
        await put(room.router.inbox(key), "1")
    for key in ("acme", "bolt"):
        closings.replace(opened(room, key).store)
        opened(room, key).idle_since -= 3600
    task = asyncio.create_task(put(room.router.inbox("crow"), "1"))
    await soon(closings.first.wait())
    task.cancel()
    await asyncio.wait([task])
    closings.go_on.set()
    await becomes(lambda: sorted(closings.ended) == ["acme", "bolt"], 2)


async def test_a_cancelled_close_closes_all(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room, closings = open_room(urls), Closings()
    for key in KEYS:
        await put(room.router.inbox(key), "1")
    for key in KEYS:
        closings.replace(opened(room, key).store)
    task = asyncio.create_task(room.close())
    await soon(closings.first.wait())
    task.cancel()
    await asyncio.wait([task])
    closings.go_on.set()
    await becomes(lambda: sorted(closings.ended) == sorted(KEYS), 2)


@pytest.mark.parametrize("how", ["close", "idle"])
async def test_stores_are_closed_in_parallel(open_room: OpenRoom, urls: dict[str, str], how: str) -> None:
    room, closings = open_room(urls), Closings()
    for key in KEYS:
        await put(room.router.inbox(key), "1")
    for key in KEYS:
        closings.replace(opened(room, key).store)
        opened(room, key).idle_since -= 3600
    stores: Any = room._tenants.stores  # type: ignore[union-attr]
    task = asyncio.create_task(stores.close_all() if how == "close" else stores._close_idle_for_too_long())
    try:
        await becomes(lambda: sorted(closings.begun) == sorted(KEYS), 2)
    finally:
        closings.go_on.set()
        await soon(task)


async def test_a_store_is_closed_in_every_event_loop(open_room: OpenRoom, urls: dict[str, str]) -> None:
    """Each event loop has connections of its own."""
    room, closings = open_room(urls), Closings()
    used, ended = threading.Event(), threading.Event()

    async def use() -> None:
        await put(room.router.inbox("acme"), "2")
        used.set()
        await becomes(ended.is_set)

    await put(room.router.inbox("acme"), "1")
    closings.replace(opened(room, "acme").store, waits=False)
    thread = threading.Thread(target=asyncio.run, args=[use()])
    thread.start()
    try:
        await becomes(used.is_set)
        opened(room, "acme").idle_since -= 3600
        stores: Any = room._tenants.stores  # type: ignore[union-attr]
        await stores._close_idle_for_too_long()
        await becomes(lambda: len(closings.ended) == 2, 5)
        assert len(set(closings.loops)) == 2
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)


async def test_stores_that_stay_open_need_no_place(open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom._many.servers.WAIT_SECONDS", 0.05)
    room = open_room({str(number): "memory://" for number in range(5)}, open_stores=2)
    for key in room.router.keys:
        await put(room.router.inbox(key), "1")
    assert set(room.router.open_stores.values()) == {5}
    assert [len(await room.router.inbox(key).find()) for key in room.router.keys] == [1] * 5
