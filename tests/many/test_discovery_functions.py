"""The function of the user that returns the stores."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import ArgumentTypeError, Postroom, StoreNotFound
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.directory import SHORT, Directory
from tests.many.stores import KEYS, Handled, databases
from tests.runtime.support import Logged, put, soon


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
