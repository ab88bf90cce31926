"""The tables of many stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom import SchemaMissing, StoreConfig
from tests.many.conftest import OpenRoom
from tests.many.stores import Handled, migrated, new_database
from tests.runtime.support import Logged, put


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
        not_here = open_room(
            {"other": StoreConfig(new_database(engine, tmp_path, "other"), deploy_schema=False)}, deploy_schema=True
        )
        with pytest.raises(Exception, match="migrate"):
            await put(not_here.router.inbox("other"), "1")


async def test_a_store_without_tables_says_what_to_do(open_room: OpenRoom, tmp_path: Path) -> None:
    room = open_room({"acme": f"sqlite:///{tmp_path}/acme.db"})
    with pytest.raises(SchemaMissing, match=r"store 'acme' has no tables: call migrate_stores\(\) on the room"):
        await room.router.inbox("acme").enqueue("t", "x", source="s", message_id="1")
