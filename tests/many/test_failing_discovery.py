"""Discovery that fails, or returns what it should not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.many.conftest import OpenRoom
from tests.many.directory import SHORT, Directory
from tests.many.stores import KEYS, Handled, becomes
from tests.runtime.support import Logged, put

SECRET = "hunter2"


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
            await becomes(lambda: not len(room.router))
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
