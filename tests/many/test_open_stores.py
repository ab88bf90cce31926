"""Open stores: a limit for each server, and idle stores are closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroom import Message, Postroom, StoreBusy
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, Looks, becomes, databases, planned
from tests.runtime.support import Gate, Gauge, Logged, put, soon


def stores_of(room: Any) -> Any:
    return room._tenants.stores


async def test_the_limit_of_a_server(
    open_room: OpenRoom, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = open_room(urls, open_stores=2)
    for _ in range(2):
        for key in KEYS:
            await put(room.router.inbox(key), "1")
            assert sum(room.router.open_stores.values()) <= 2
    assert set(room.router.open_stores.values()) == {2}
    monkeypatch.setattr("postroom._many.servers.WAIT_SECONDS", 0.05)
    async with room.router.store("acme").transaction(), room.router.store("bolt").transaction():
        with pytest.raises(StoreBusy, match="Raise open_stores") as raised:
            await put(room.router.inbox("crow"), "2")
        assert isinstance(raised.value, TimeoutError)
    await put(room.router.inbox("crow"), "2")


async def test_a_call_waits_for_a_place(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls, open_stores=1)
    async with room.router.store("acme").transaction():
        waiting = asyncio.create_task(put(room.router.inbox("bolt"), "1"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
    await soon(waiting)


def test_sync_rooms(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom._many.servers.WAIT_SECONDS", 0.05)
    urls = {key: url.replace("+asyncpg", "+psycopg") for key, url in databases(engine, tmp_path).items()}
    with SyncPostroom(stores=urls, open_stores=1) as room:
        for key in KEYS:
            room.router.inbox(key).enqueue("t", "x", source="s", message_id="1")
            assert set(room.router.open_stores.values()) == {1}
        with room.router.store("acme").transaction(), pytest.raises(StoreBusy):
            room.router.inbox("bolt").find()
    assert room.router.open_stores == {}


async def test_workers_share_few_places(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    """A store whose turn must wait for a place did not fail."""
    room = open_room(urls, open_stores=1)
    room.inbox(concurrency=3).handler("t")(handled)
    for key in KEYS:
        await put(room.router.inbox(key), *range(5))
    with Logged() as logged:
        async with room:
            await handled.until(*((key, str(number)) for key in KEYS for number in range(5)), seconds=30)
    assert not logged.saying("failed")


async def test_a_full_server_is_no_failure(
    open_room: OpenRoom, urls: dict[str, str], looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks that find no place are repeated, and open no breaker."""
    monkeypatch.setattr("postroom._many.servers.WAIT_SECONDS", 0.05)
    room = open_room(urls, open_stores=1)
    gate = Gate()
    room.inbox(concurrency=3).handler("t")(gate)
    await put(room.router.inbox("acme"), "1")
    with Logged() as logged:
        async with room:
            await gate.reached(1)
            await put_elsewhere(urls["bolt"])
            await asyncio.sleep(0.3)
            gate.open()
            await gate.reached(2)
    assert not logged.saying("failed")


async def put_elsewhere(url: str) -> None:
    async with Postroom(url) as other:
        await put(other.inbox(), "1")


@pytest.mark.req("IBX-124", "OBX-116")
async def test_an_idle_store_is_closed_and_left_alone(
    open_room: OpenRoom, urls: dict[str, str], looks: Looks, handled: Handled
) -> None:
    """One look, then nothing: neither a connection nor a statement."""
    room = open_room(urls, notify=False)
    room.inbox().handler("t")(handled)
    async with room:
        await looks.until(*KEYS)
        await becomes(lambda: not room.router.open_stores, 5)
        assert all(100 < pause < 140 for pause in (await planned(room)).values()), "two minutes, with jitter"
        assert room.router.open_stores == {}
        assert len(looks.seen) == 3


async def test_a_store_is_closed_after_some_seconds(
    open_room: OpenRoom, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = open_room(urls)
    await put(room.router.inbox("acme"), "1")
    opened = room.router._registry.get("acme").opened
    assert opened is not None
    opened.idle_since -= 3600
    await stores_of(room)._close_idle_for_too_long()
    assert room.router.open_stores == {}
    assert len(await room.router.inbox("acme").find()) == 1, "it is opened again"


async def test_memory_stays_open(open_room: OpenRoom) -> None:
    """It would lose its messages."""
    room = open_room({str(number): "memory://" for number in range(5)}, open_stores=20)
    for key in room.router.keys:
        await put(room.router.inbox(key), "1")
    for tenant in room.router._registry:
        assert tenant.opened is not None
        tenant.opened.idle_since -= 3600
    await stores_of(room)._close_idle_for_too_long()
    assert [len(await room.router.inbox(key).find()) for key in room.router.keys] == [1] * 5


async def test_a_close_that_hangs(open_room: OpenRoom, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom._many.servers.CLOSE_SECONDS", 0.05)
    stores = dict(urls)
    room = open_room(discover=lambda: stores)
    await room.refresh()
    await put(room.router.inbox("acme"), "1")
    opened = room.router._registry.get("acme").opened
    assert opened is not None
    store, close = opened.store, opened.store.close
    store.close = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    del stores["acme"]
    with Logged() as logged:
        await soon(room.refresh())
        await logged.says("store=acme did not close cleanly: TimeoutError")
    await close()


async def test_a_cancelled_call_leaves_the_store(open_room: OpenRoom, urls: dict[str, str]) -> None:
    """Also if it is cancelled while it closes another store to get its place."""
    room = open_room(urls, open_stores=1)
    await put(room.router.inbox("acme"), "1")
    acme = room.router._registry.get("acme").opened
    assert acme is not None
    closing, go_on = asyncio.Event(), asyncio.Event()
    close = acme.store.close

    async def slow_close() -> None:
        closing.set()
        await go_on.wait()
        await close()

    acme.store.close = slow_close  # type: ignore[method-assign]
    task = asyncio.create_task(put(room.router.inbox("bolt"), "1"))
    await soon(closing.wait())
    task.cancel()
    await asyncio.wait([task])
    go_on.set()
    bolt = room.router._registry.get("bolt").opened
    assert bolt is None or bolt.calls == 0
    await put(room.router.inbox("crow"), "1")


async def test_a_store_is_open_while_a_handler_runs(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls, open_stores=1)
    calls = Gauge()

    @room.inbox().handler("t")
    async def handle(message: Message[Any]) -> None:
        with calls:
            opened = room.router._registry.get(message.store).opened
            assert opened is not None
            assert opened.calls
            await stores_of(room).close_idle(room.router._registry.get(message.store))
            assert room.router._registry.get(message.store).opened is opened

    await put(room.router.inbox("acme"), "1")
    assert await room.drain(raise_errors=True) == 1
    assert calls.most == 1
