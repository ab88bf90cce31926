"""Discovery: the list of stores changes while the room runs."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import ArgumentTypeError, Message, Postroom, State, StoreConfig, StoreNotFound
from postroom._many.calendar import Calendar
from postroom._many.workers import TenantWorkers
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, Looks, databases, migrated, mixed, new_database
from tests.runtime.support import Gate, Logged, put, soon, states

SECRET = "hunter2"


class Directory:
    """A discovery whose list a test changes."""

    def __init__(self, stores: Any) -> None:
        self.stores = dict(stores)
        self.error: Exception | None = None
        self.calls = 0
        self._called = asyncio.Event()

    async def __call__(self) -> Any:
        self.calls += 1
        self._called.set()
        if self.error is not None:
            raise self.error
        stores = dict(self.stores)
        await asyncio.sleep(0)
        return stores

    async def called(self, more: int = 2) -> None:
        """Waits for so many further calls. The second one has begun after the first was applied."""
        last = self.calls + more

        async def reached() -> None:
            while self.calls < last:
                self._called.clear()
                await self._called.wait()

        await soon(reached())


def store_object(room: Postroom, key: str) -> object:
    opened = room.router._registry.get(key).opened
    return None if opened is None else opened.store


def calendar_of(room: Postroom) -> Calendar:
    assert isinstance(room._source, TenantWorkers)
    return room._source.calendar


@pytest.fixture
async def directory(urls: dict[str, str]) -> Directory:
    return Directory(urls)


SHORT = timedelta(milliseconds=10)


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
            verified, entry = tenant.verified, calendar_of(room)._entries["acme"]
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
            assert calendar_of(room)._entries["acme"] is entry
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


class TestFailures:
    async def test_a_failing_discovery_keeps_the_list(
        self, open_room: OpenRoom, directory: Directory, handled: Handled
    ) -> None:
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        with Logged() as logged:
            async with room:
                directory.error = OSError("the directory is away")
                await directory.called(5)
                assert room.router.keys == list(KEYS)
                await put(room.router.inbox("acme"), "1")
                await handled.until(("acme", "1"))
                directory.error = None
                await logged.says("the discovery of stores works again")
                directory.error = OSError("again")
                await directory.called(5)
        failures = logged.saying("the discovery of stores failed")
        assert len(failures) == 2, "one record for each change"
        assert "keeps its 3 stores" in failures[0].message

    @pytest.mark.parametrize("result", [None, [], "text", 7])
    async def test_a_wrong_result_is_a_failure(self, open_room: OpenRoom, directory: Directory, result: Any) -> None:
        async def discover() -> Any:
            return await directory() if directory.calls < 2 else (await directory(), result)[1]

        room = open_room(discover=discover, refresh=SHORT)
        with Logged() as logged:
            async with room:
                await logged.says("the discovery of stores failed")
                assert room.router.keys == list(KEYS)

    async def test_the_first_failure_is_raised(self, open_room: OpenRoom, directory: Directory) -> None:
        directory.error = OSError("the directory is away")
        room = open_room(discover=directory)
        with pytest.raises(OSError, match="away"):
            await room.start()
        assert not room.is_running
        directory.error = None
        async with room:
            assert room.router.keys == list(KEYS)

    async def test_a_large_disappearance_is_confirmed(self, open_room: OpenRoom, directory: Directory) -> None:
        room = open_room(discover=directory)
        await room.refresh()
        all_stores = dict(directory.stores)
        directory.stores = {"acme": all_stores["acme"]}
        with Logged() as logged:
            await room.refresh()
            assert room.router.keys == list(KEYS), "it may be an error of the discovery"
            assert len(logged.saying("until a second discovery confirms it")) == 1
            directory.stores = all_stores
            await room.refresh()
            directory.stores = {"acme": all_stores["acme"]}
            await room.refresh()
            assert room.router.keys == list(KEYS), "another discovery has returned them"
            directory.stores = {"bolt": all_stores["bolt"]}
            await room.refresh()
            assert room.router.keys == list(KEYS), "others have disappeared"
            await room.refresh()
        assert room.router.keys == ["bolt"]

    async def test_it_is_confirmed_soon(self, open_room: OpenRoom, directory: Directory, quick: None) -> None:
        room = open_room(discover=directory, refresh=timedelta(hours=1))
        async with room:
            directory.stores = {}
            await room.refresh()
            assert len(room.router) == 3
            async with asyncio.timeout(10):
                while len(room.router):
                    await asyncio.sleep(0.01)
            assert directory.calls == 3

    async def test_one_store_may_disappear_at_once(self, open_room: OpenRoom, directory: Directory) -> None:
        room = open_room(discover=directory)
        await room.refresh()
        del directory.stores["acme"]
        await room.refresh()
        assert room.router.keys == ["bolt", "crow"]

    async def test_a_call_does_not_confirm_one_that_it_overlapped(
        self, open_room: OpenRoom, directory: Directory
    ) -> None:
        room = open_room(discover=directory)
        await room.refresh()
        directory.stores = {}
        await asyncio.gather(room.refresh(), room.refresh())
        assert len(room.router) == 3

    async def test_the_result_of_an_older_call_is_dropped(self, open_room: OpenRoom, urls: dict[str, str]) -> None:
        first = asyncio.Event()
        lists = [{"acme": urls["acme"]}, urls]
        waits = [first.wait, asyncio.sleep]

        async def discover() -> Any:
            stores, wait = lists.pop(0), waits.pop(0)
            await (wait() if wait == first.wait else asyncio.sleep(0))
            return stores

        room = open_room(discover=discover)
        older = asyncio.create_task(room.refresh())
        await asyncio.sleep(0)
        await room.refresh()
        first.set()
        await older
        assert room.router.keys == list(KEYS)

    async def test_a_bad_store_is_left_out(self, open_room: OpenRoom, directory: Directory, handled: Handled) -> None:
        bad = {
            "a\nb": "memory://",
            "unreadable": f"postgresql://jane:{SECRET}@[db/one",
            "unknown": f"nothing://jane:{SECRET}@db",
            "options": {"url": "memory://", "colour": SECRET},
            "number": 7,
        }
        directory.stores |= bad
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        with Logged() as logged:
            async with room:
                await directory.called(4)
                assert room.router.keys == list(KEYS)
                await put(room.router.inbox("bolt"), "1")
                await handled.until(("bolt", "1"))
                directory.stores["unreadable"] = "memory://"
                await directory.called()
                assert "unreadable" in room.router, "it joins once it fits"
        warnings = [record.message for record in logged.saying("is left out")]
        assert len(warnings) == len(bad), "once for each"
        assert not [text for text in warnings if SECRET in text or "\n" in text]

    async def test_a_bad_new_configuration_keeps_the_old_one(
        self, open_room: OpenRoom, directory: Directory, handled: Handled
    ) -> None:
        room = open_room(discover=directory, refresh=SHORT)
        room.inbox().handler("t")(handled)
        async with room:
            directory.stores["acme"] = "nothing://"
            await directory.called()
            await put(room.router.inbox("acme"), "1")
            await handled.until(("acme", "1"))


class TestFunctions:
    @pytest.mark.req("IBX-093", "OBX-069")
    async def test_a_plain_function_runs_in_a_thread(self, open_room: OpenRoom, urls: dict[str, str]) -> None:
        threads: list[threading.Thread] = []

        def discover() -> Any:
            threads.append(threading.current_thread())
            return urls

        room = open_room(discover=discover)
        await room.refresh()
        assert room.router.keys == list(KEYS)
        assert threads[0] is not threading.main_thread()

    async def test_a_function_that_hangs(
        self, open_room: OpenRoom, urls: dict[str, str], handled: Handled, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It keeps neither the workers nor a stop waiting."""
        hangs = asyncio.Event()
        calls = 0

        async def discover() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                hangs.set()
                await asyncio.Event().wait()
            return urls

        room = open_room(discover=discover, refresh=SHORT)
        room.inbox().handler("t")(handled)
        await room.start()
        await soon(hangs.wait())
        await put(room.router.inbox("acme"), "1")
        await handled.until(("acme", "1"))
        await soon(room.stop())
        await soon(room.close())

    async def test_a_timeout_keeps_the_list(
        self, open_room: OpenRoom, directory: Directory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("postroom._many.discovery.LONGEST_CALL_SECONDS", 0.01)

        async def discover() -> Any:
            stores = await directory()
            if directory.calls > 1:
                await asyncio.Event().wait()
            return stores

        room = open_room(discover=discover, refresh=SHORT)
        with Logged() as logged:
            async with room:
                await logged.says("the discovery of stores failed")
                assert room.router.keys == list(KEYS)

    @pytest.mark.req("IBX-094", "OBX-070")
    async def test_every_five_minutes(self, open_room: OpenRoom, directory: Directory) -> None:
        room = open_room(discover=directory)
        await room.refresh()
        discovery = room._tenants.discovery if room._tenants else None
        assert discovery is not None
        assert 299 < discovery.pause <= 300
        assert directory.calls == 1

    @pytest.mark.parametrize("discover", [7, "text", {"a": "memory://"}])
    def test_what_is_no_function(self, discover: Any) -> None:
        for kind in (Postroom, SyncPostroom):
            with pytest.raises(ArgumentTypeError, match="discover must be a function"):
                kind(discover=discover)

    async def test_a_room_that_only_enqueues(self, open_room: OpenRoom, directory: Directory) -> None:
        """Without a start, it reads the list when it is told to."""
        room = open_room(discover=directory)
        with pytest.raises(StoreNotFound, match=r"room\.refresh\(\)"):
            room.router.inbox("acme")
        await room.refresh()
        await put(room.router.inbox("acme"), "1")
        with pytest.raises(StoreNotFound, match="it has 3 others"):
            room.router.inbox("nobody")

    async def test_a_room_without_handlers_refreshes_too(self, open_room: OpenRoom, directory: Directory) -> None:
        del directory.stores["crow"]
        async with open_room(discover=directory, refresh=SHORT) as room:
            directory.stores["crow"] = "memory://"
            await directory.called()
            await put(room.router.inbox("crow"), "1")

    @pytest.mark.req("IBX-093", "OBX-069")
    def test_sync_rooms(self, engine: str, tmp_path: Path) -> None:
        urls = {key: url.replace("+asyncpg", "+psycopg") for key, url in databases(engine, tmp_path).items()}
        found = {"acme": urls["acme"]}
        with SyncPostroom(discover=lambda: found, refresh=timedelta(seconds=1000)) as room:
            assert room.router.keys == ["acme"], "it is read with the first use"
            inbox = room.router.inbox("acme")
            found = urls
            with pytest.raises(LookupError):
                room.router.inbox("bolt")
            room.refresh()
            assert room.router.inbox("acme") is inbox
            assert room.router.inbox("bolt").enqueue("t", "x", source="s", message_id="1").status == "new"
        with SyncPostroom(discover=lambda: urls, refresh=timedelta(microseconds=1)) as room:
            assert "crow" not in room.router
            assert room.router.keys == list(KEYS)

    def test_a_sync_room_needs_a_plain_function(self) -> None:
        async def discover() -> Any:
            return {}

        with pytest.raises(ArgumentTypeError, match="plain function"), SyncPostroom(discover=discover) as room:
            room.router.inbox("acme")


class TestSchema:
    async def test_a_store_without_tables_joins_after_its_migration(
        self, open_room: OpenRoom, urls: dict[str, str], engine: str, tmp_path: Path, handled: Handled, quick: None
    ) -> None:
        url = new_database(engine, tmp_path, "new")
        room = open_room({**urls, "new": url})
        room.inbox().handler("t")(handled)
        with Logged() as logged:
            async with room:
                record = await logged.says("store=new is left out")
                assert "migrate" in record.message
                await put(room.router.inbox("acme"), "1")
                await handled.until(("acme", "1"))
                migrated(url)
                await logged.says("store=new works again")
                await put(room.router.inbox("new"), "1")
                await handled.until(("new", "1"))
        assert len(logged.saying("store=new is left out")) == 1

    async def test_tables_are_made_if_that_is_requested(
        self, open_room: OpenRoom, engine: str, tmp_path: Path, handled: Handled, quick: None
    ) -> None:
        stores = {key: new_database(engine, tmp_path, key) for key in ("with", "without")}
        room = open_room(
            {"with": StoreConfig(stores["with"], deploy_schema=True), "without": stores["without"]},
        )
        room.inbox().handler("t")(handled)
        with Logged() as logged:
            async with room:
                await logged.says("store=without is left out")
                await put(room.router.inbox("with"), "1")
                await handled.until(("with", "1"))
        every = open_room(
            {"with": stores["with"], "without": StoreConfig(stores["without"], deploy_schema=None)}, deploy_schema=True
        )
        await put(every.router.inbox("without"), "1")
        not_here = open_room({"other": StoreConfig(new_database(engine, tmp_path, "other"), deploy_schema=False)},
                             deploy_schema=True)
        with pytest.raises(Exception, match="migrate"):
            await put(not_here.router.inbox("other"), "1")
