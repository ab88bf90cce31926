"""The life of a room with many stores: start, stop, drain, health, migrations."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import Cleaning, Message, Postroom, RoomClosed, State, StoreMigrated
from postroom.testing import Events
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, Looks, becomes, mixed, new_database
from tests.runtime.support import Gate, Logged, put, soon, states


async def test_a_room_starts_again(open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks) -> None:
    room = open_room(urls)
    room.inbox().handler("t")(handled)
    for run in range(3):
        await room.start()
        await put(room.router.inbox("acme"), run)
        await handled.until(("acme", str(run)), *[("bolt", str(run - 1))][:run])
        await room.stop()
        await put(room.router.inbox("bolt"), run)
    await room.close()
    with pytest.raises(RoomClosed):
        await room.start()
    with pytest.raises(RoomClosed):
        await put(room.router.inbox("acme"), "late")


async def test_a_stop_waits_for_handlers_and_releases_the_rest(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls, shutdown_timeout=timedelta(seconds=20))
    gate = Gate()
    room.inbox(concurrency=3, batch_size=5).handler("t")(gate)
    for key in KEYS:
        await put(room.router.inbox(key), *range(5))
    await room.start()
    await gate.reached(3)
    stopping = asyncio.create_task(room.stop())
    await asyncio.sleep(0)
    gate.open()
    await soon(stopping)
    found = [message for key in KEYS for message in await room.router.inbox(key).find()]
    assert len([message for message in found if message.state is State.DONE]) == len(gate.entered)
    assert all(message.claim is None or message.state is State.DONE for message in found)
    assert {message.attempt for message in found} == {0}


async def test_a_stop_that_takes_too_long_gives_messages_back(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls, shutdown_timeout=timedelta(0))
    gate = Gate()
    room.inbox(concurrency=3).handler("t")(gate)
    for key in KEYS:
        await put(room.router.inbox(key), "1")
    await room.start()
    await gate.reached(3)
    await soon(room.stop())
    for key in KEYS:
        (message,) = await room.router.inbox(key).find()
        assert (message.state, message.attempt) == (State.WAITING, 0)


async def test_one_box_alone(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    room = open_room(urls)
    room.inbox().handler("t")(handled)
    room.outbox().handler("t")(handled)
    for key in KEYS:
        await put(room.router.inbox(key), "in")
        await put(room.router.outbox(key), "out")
    await room.inbox().start()
    await handled.until(*((key, "in") for key in KEYS))
    await room.inbox().stop()
    await put(room.router.inbox("acme"), "later")
    assert await states(room.router.inbox("acme")) == {"in": State.DONE, "later": State.WAITING}
    await room.start([room.outbox()])
    await handled.until(*((key, "out") for key in KEYS))
    assert ("acme", "later") not in handled.seen
    assert room.health().keys() == {"outbox:outbox"}


async def test_one_box_of_a_discovering_room(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    room = open_room(discover=lambda: urls)
    room.inbox().handler("t")(handled)
    async with Postroom(urls["acme"]) as other:
        await put(other.inbox(), "1")
    await room.inbox().start()
    await handled.until(("acme", "1"))


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_a_handler_that_comes_later_gets_hints(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks, quick: None
) -> None:
    """The probes begin with the first worker, also if the room had none when it was started."""
    room = open_room(discover=lambda: urls)
    await room.start()
    room.inbox().handler("t")(handled)
    await room.start()
    await looks.until(*KEYS)
    async with Postroom(urls["acme"]) as other:
        await put(other.inbox(), "1")
    await handled.until(("acme", "1"))


async def test_drain(open_room: OpenRoom, tmp_path: Path, handled: Handled) -> None:
    room = open_room(mixed(tmp_path))

    @room.inbox().handler("t")
    async def handle(message: Message[Any]) -> None:
        handled.note(message)
        if message.message_id == "bad":
            raise ValueError(message.store)

    for key in room.router.keys:
        await put(room.router.inbox(key), "1", "bad")
    with pytest.raises(ExceptionGroup) as raised:
        await room.drain(raise_errors=True)
    assert sorted(map(str, raised.value.exceptions)) == sorted(room.router.keys)
    assert len(handled.seen) == 8
    assert await room.drain() == 0


async def test_drain_with_few_open_stores(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    room = open_room(urls, open_stores=1)
    room.inbox(concurrency=3).handler("t")(handled)
    for key in KEYS:
        await put(room.router.inbox(key), "1")
    assert await soon(room.drain(), 20) == 3


async def test_health(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)
    gate = Gate()
    room.inbox(concurrency=3).handler("t")(gate)
    assert await room.is_ready()
    assert room.health() == {}
    async with room:
        for key in KEYS:
            await put(room.router.inbox(key), "1")
        await gate.reached(3)
        health = room.health()["inbox:inbox"]
        assert (health.running, health.in_hand, health.last_error) == (True, 3, None)
        assert await room.is_ready()
        gate.open()
    assert room.health() == {}


async def test_cleanup(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)
    room.inbox(retention=timedelta(microseconds=1))
    for key in KEYS:
        await room.router.inbox(key).mark_processed("1", "s")
    cleaned = await room.cleanup()
    assert cleaned["inbox:inbox"].done == 3
    assert [await room.router.inbox(key).find() for key in KEYS] == [[], [], []]


async def test_a_running_room_cleans_its_stores(
    open_room: OpenRoom, urls: dict[str, str], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a day in idle stores: there is no janitor for each of them."""
    monkeypatch.setattr("postroom._many.store_schedule.DAY_SECONDS", 0.0)
    room = open_room(urls, cleaning=Cleaning())
    room.inbox(retention=timedelta(microseconds=1)).handler("t")(Handled())
    for key in KEYS:
        await room.router.inbox(key).mark_processed("1", "s")
    async with room:
        for key in KEYS:
            await events.wait("purge", lambda event, key=key: event.store == key)  # type: ignore[misc]


class TestMigrations:
    async def test_all_stores(self, open_room: OpenRoom, engine: str, tmp_path: Path, handled: Handled) -> None:
        stores = {key: new_database(engine, tmp_path, key) for key in KEYS}
        room = open_room({**stores, "bad": "sqlite:////no/such/folder/x.db", "ram": "memory://"})
        seen: list[str] = []
        migrated = await room.migrate_stores(parallel=2, progress=lambda each: seen.append(each.store))
        assert [each.store for each in migrated] == [*KEYS, "bad", "ram"]
        assert sorted(seen) == sorted([*KEYS, "bad", "ram"])
        by_store = {each.store: each for each in migrated}
        assert all(by_store[key].versions and by_store[key].error is None for key in KEYS)
        assert by_store["bad"].error is not None
        assert by_store["ram"] == StoreMigrated("ram", [], None)
        again = {each.store: each for each in await room.migrate_stores()}
        assert all(again[key] == StoreMigrated(key, [], None) for key in KEYS)

    async def test_before_each_start(self, open_room: OpenRoom, engine: str, tmp_path: Path, handled: Handled) -> None:
        room = open_room({key: new_database(engine, tmp_path, key) for key in KEYS})
        room.on_start(room.migrate_stores)
        room.inbox().handler("t")(handled)
        with Logged() as logged:
            async with room:
                await put(room.router.inbox("crow"), "1")
                await handled.until(("crow", "1"))
        assert not logged.saying("left out")


@pytest.mark.parametrize("engine", ["asyncpg"], indirect=True)
async def test_a_closed_room_leaves_no_connection(urls: dict[str, str], handled: Handled) -> None:
    names = [url.rsplit("/", 1)[1] for url in urls.values()]
    began = datetime.now(UTC)
    room = Postroom(stores=urls)
    room.inbox().handler("t")(handled)
    async with room:
        for key in KEYS:
            await put(room.router.inbox(key), "1")
        await handled.until(*((key, "1") for key in KEYS))
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = ANY(%s) AND backend_start > %s"
    with psycopg.connect(urls["acme"].replace("+asyncpg", "")[: -len(names[0])] + "postgres", autocommit=True) as admin:
        # A server process needs some time to end.
        await becomes(lambda: admin.execute(query, [names, began]).fetchall() == [(0,)])
