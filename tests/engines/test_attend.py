"""`attend`: what it costs, and that it waits for no lock. The conformance suite has the rest."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from postroom._connect import open_store
from postroom._stores.redis.layout import attendant_key
from postroom.spi import Box
from postroom.testing.conformance.base import ALICE, BOB, draft, seconds
from tests.postgres import clean_database, with_driver
from tests.redis import new_prefix, open_at, server
from tests.support import settled

BOX = Box("inbox", "box")
TERM = seconds(20)
PATIENCE = 5.0
"""Seconds for a call that must not wait."""


class TestPostgres:
    @pytest.fixture
    def url(self) -> str:
        return clean_database()

    @pytest.fixture(params=["asyncpg", "psycopg"])
    async def store(self, request: pytest.FixtureRequest, url: str) -> AsyncIterator[Any]:
        store = open_store(with_driver(url, request.param), mode="async")
        yield store
        await store.close()

    async def attend(self, store: Any, process: UUID = ALICE) -> Any:
        return await asyncio.wait_for(store.attend([BOX.key], process, TERM), PATIENCE)

    async def test_a_locked_soft_lease_counts_as_held_by_another(self, store: Any, url: str) -> None:
        with psycopg.connect(url) as other:
            other.execute("SELECT FROM postroom_attendant FOR UPDATE")
            assert (await self.attend(store)).free_in == 20.0
        assert (await self.attend(store)).free_in is None

    async def test_locked_messages_are_due(self, store: Any, url: str) -> None:
        await store.put(BOX, [draft("1")])
        with psycopg.connect(url) as other:
            other.execute("SELECT FROM postroom_queue FOR UPDATE")
            assert (await self.attend(store)).due[BOX.key] <= 0

    async def test_a_nudged_group_is_due(self, store: Any, url: str) -> None:
        """Its members sleep, but a claim must look at it."""
        with psycopg.connect(url) as other:
            other.execute("INSERT INTO postroom_nudge VALUES (1, 'inbox:box', 'g')")
        assert (await self.attend(store)).due == {BOX.key: 0.0}

    async def test_a_look_that_takes_nothing_writes_nothing(self, store: Any, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as other:
            await self.attend(store)
            version = "SELECT xmin, ctid FROM postroom_attendant"
            before = other.execute(version).fetchone()
            await self.attend(store)
            await self.attend(store, BOB)
            assert other.execute(version).fetchone() == before

    async def test_without_the_row_every_process_attends(self, store: Any, url: str) -> None:
        """As after a TRUNCATE of all tables."""
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("DELETE FROM postroom_attendant")
            try:
                for process in (ALICE, BOB):
                    assert (await self.attend(store, process)).free_in is None
            finally:
                other.execute("INSERT INTO postroom_attendant (id) VALUES (1)")


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_on_sqlite_only_taking_the_lease_needs_the_write_lock(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "room.db"
    store = open_store(f"sqlite:///{path}", mode=mode, deploy_schema=True)
    await settled(store.put(BOX, [draft("1")]))
    await settled(store.attend([BOX.key], ALICE, TERM))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert (await settled(store.attend([BOX.key], ALICE, TERM))).free_in is None
        found = await settled(store.attend([BOX.key], BOB, TERM))
        assert found.free_in > 0
        assert found.due[BOX.key] <= 0
    await settled(store.close())


def test_on_sqlite_another_process_may_take_the_lease_first(tmp_path: Path) -> None:
    store, other = (open_store(f"sqlite:///{tmp_path}/room.db", mode="sync", deploy_schema=True) for _ in range(2))
    store.counts(BOX)
    read = store._queue.attending.read

    def read_and_be_overtaken(*args: Any) -> Any:
        found = yield from read(*args)
        assert other.attend([], BOB, TERM).free_in is None
        return found

    store._queue.attending.read = read_and_be_overtaken
    assert store.attend([], ALICE, TERM).free_in == 20.0
    store.close()
    other.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_on_redis_it_is_one_script_for_all_boxes(mode: Any) -> None:
    prefix = new_prefix()
    store = open_at(server(), mode, prefix=prefix)
    boxes = [Box("inbox", str(number)) for number in range(50)]
    for box in boxes[::10]:
        await settled(store.put(box, [draft("1")]))
    await settled(store.attend([BOX.key], ALICE, TERM))
    client, sent = store._client._opened().client, []

    def noting(send: Any) -> Any:
        def noted(*command: Any) -> Any:
            sent.append(command[0])
            return send(*command)

        return noted

    def noting_pipeline(**options: Any) -> Any:
        pipeline = make_pipeline(**options)
        pipeline.execute_command = noting(pipeline.execute_command)
        return pipeline

    make_pipeline, client.pipeline = client.pipeline, noting_pipeline
    client.execute_command = noting(client.execute_command)
    found = await settled(store.attend([box.key for box in boxes], ALICE, TERM))
    assert found.due.keys() == {box.key for box in boxes[::10]}
    assert sent == ["EVALSHA"]
    assert await settled(store._client.execute("HGET", attendant_key(prefix), "process")) == ALICE.hex.encode()
    await settled(store.close())
