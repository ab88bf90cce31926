"""Discovery: the list of stores changes while the room runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroom import Message, Postroom, State, StoreConfig, StoreNotFound
from postroom._many.store_schedule import StoreSchedule
from postroom._many.workers import TenantWorkers
from tests.many.conftest import OpenRoom
from tests.many.directory import SHORT, Directory
from tests.many.stores import KEYS, Handled, Looks, migrated, mixed, new_database
from tests.runtime.support import Gate, put, states


def store_object(room: Postroom, key: str) -> object:
    opened = room.router._registry.get(key).opened
    return None if opened is None else opened.store


def schedule_of(room: Postroom) -> StoreSchedule:
    assert isinstance(room._source, TenantWorkers)
    return room._source.schedule


class TestChanges:
    @pytest.mark.req("IBX-093", "IBX-095", "OBX-069", "OBX-071", "IBX-API-35", "OBX-API-22", "IBX-API-37", "OBX-API-24")
    async def test_a_new_store_joins(
        self, open_room: OpenRoom, directory: Directory, urls: dict[str, str], handled: Handled
    ) -> None:
        del directory.stores["crow"]
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        room.outbox().handler("t")(handled)
        async with room:
            assert room.router.keys == ["acme", "bolt"]
            with pytest.raises(LookupError):
                room.router.inbox("crow")
            async with Postroom(urls["crow"]) as other:
                await put(other.inbox(), "in")
                await put(other.outbox(), "out")
            directory.stores = urls
            await handled.until(("crow", "in"), ("crow", "out"))
            assert room.router.keys == ["acme", "bolt", "crow"]
            await put(room.router.inbox("crow"), "2")
            await handled.until(("crow", "2"))

    @pytest.mark.req("IBX-096", "OBX-072")
    @pytest.mark.parametrize("kind", ["inbox", "outbox"])
    async def test_a_removed_store_is_drained_and_closed(
        self, open_room: OpenRoom, directory: Directory, urls: dict[str, str], handled: Handled, kind: str
    ) -> None:
        """What its handlers have begun is stored; what they have not begun is released."""
        room = open_room(discover=directory, refresh=SHORT)
        gate = Gate()

        @(room.inbox() if kind == "inbox" else room.outbox()).handler("t")
        async def handle(message: Message[Any]) -> None:
            await gate(message)

        async with room:
            box = getattr(room.router, kind)("bolt")
            await put(box, *range(5))
            await gate.reached(1)
            opened = room.router._registry.get("bolt").opened
            assert opened is not None
            del directory.stores["bolt"]
            await directory.called()
            assert room.router.keys == ["acme", "crow"]
            with pytest.raises(StoreNotFound):
                getattr(room.router, kind)("bolt")
            with pytest.raises(StoreNotFound, match="was removed"):
                await put(box, "6")
            assert opened.calls, "it is open while its handler runs"
            gate.open()
            async with Postroom(urls["bolt"]) as alone:
                found = alone.inbox() if kind == "inbox" else alone.outbox()

                async def is_drained() -> bool:
                    messages = await found.find()
                    return sorted(m.state for m in messages) == sorted([State.DONE, *[State.WAITING] * 4])

                async with asyncio.timeout(10):
                    while not await is_drained():
                        await directory.called(1)
                assert all(message.attempt == 0 for message in await found.find())
                async with asyncio.timeout(10):
                    while opened.calls or opened in room.router._tenants.stores._detached:
                        await directory.called(1)
            assert len(gate.entered) == 1

    @pytest.mark.req("IBX-097", "OBX-073", "IBX-089", "OBX-064")
    async def test_unchanged_stores_are_kept(
        self, open_room: OpenRoom, directory: Directory, handled: Handled, looks: Looks
    ) -> None:
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        async with room:
            await looks.until(*KEYS)
            await put(room.router.inbox("acme"), "1")
            await handled.until(("acme", "1"))
            inbox, store = room.router.inbox("acme"), store_object(room, "acme")
            assert store is not None
            tenant = room.router._registry.get("acme")
            verified, entry = tenant.verified, schedule_of(room)._entries["acme"]
            held_until = entry.held_until
            assert held_until
            directory.stores = {key: StoreConfig(str(url)) for key, url in directory.stores.items()}
            del directory.stores["bolt"]
            await directory.called(3)
            assert room.router.keys == ["acme", "crow"]
            assert store_object(room, "acme") is store
            assert room.router.inbox("acme") is inbox
            assert room.router._registry.get("acme") is tenant
            assert tenant.verified is verified
            assert schedule_of(room)._entries["acme"] is entry
            assert entry.held_until == held_until, "the soft lease is kept"

    async def test_another_configuration_swaps_the_store(
        self, open_room: OpenRoom, directory: Directory, engine: str, tmp_path: Path, handled: Handled, looks: Looks
    ) -> None:
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        async with room:
            await looks.until(*KEYS)
            await put(room.router.inbox("acme"), "old")
            await handled.until(("acme", "old"))
            inbox, before = room.router.inbox("acme"), store_object(room, "acme")
            url = migrated(new_database(engine, tmp_path, "another"))
            async with Postroom(url) as other:
                await put(other.inbox(), "there")
            directory.stores["acme"] = url
            await handled.until(("acme", "there"))
            assert store_object(room, "acme") is not before
            assert room.router.inbox("acme") is inbox
            await put(inbox, "new")
            await handled.until(("acme", "new"))
        async with Postroom(url) as other:
            assert await states(other.inbox()) == {"there": State.DONE, "new": State.DONE}

    async def test_a_store_that_comes_back_while_its_handler_runs(
        self, open_room: OpenRoom, directory: Directory, urls: dict[str, str]
    ) -> None:
        """The visit of the removed store ends; then the new one is looked at."""
        room = open_room(discover=directory, refresh=SHORT, notify=False)
        gate = Gate()
        room.inbox().handler("t")(gate)
        async with room:
            await put(room.router.inbox("bolt"), "1")
            await gate.reached(1)
            del directory.stores["bolt"]
            await directory.called()
            directory.stores = urls
            await directory.called()
            await put(room.router.inbox("bolt"), "2")
            gate.open()
            await gate.reached(2)

    async def test_stores_come_and_go_under_load(self, open_room: OpenRoom, directory: Directory) -> None:
        room = open_room(discover=directory, refresh=SHORT)
        all_stores, seen = dict(directory.stores), Handled()
        room.inbox(concurrency=3, batch_size=3).handler("t")(seen)
        wanted: set[tuple[str, str]] = set()
        async with room:
            for number in range(30):
                gone = KEYS[number % 3]
                directory.stores = {key: url for key, url in all_stores.items() if key != gone}
                for key in KEYS:
                    try:
                        await put(room.router.inbox(key), number)
                    except StoreNotFound:
                        continue
                    wanted.add((key, str(number)))
                await directory.called(1)
            directory.stores = all_stores
            await seen.until(*wanted, seconds=30)
        assert len(wanted) > 30
        assert sorted(set(seen.seen)) == sorted(wanted)

    async def test_a_mixed_room(self, open_room: OpenRoom, tmp_path: Path, handled: Handled) -> None:
        stores = mixed(tmp_path)
        directory = Directory({"file": stores["file"]})
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        async with room:
            directory.stores = dict(stores)
            await directory.called()
            for key in stores:
                await put(room.router.inbox(key), "1")
            await handled.until(*((key, "1") for key in stores))
            del directory.stores["cache"]
            await directory.called()
            assert room.router.keys == ["file", "server", "ram"]
