"""The probe of SQLite: which of many files have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from postroom import RoomClosed
from postroom._connect import open_probe, open_store
from postroom._stores.sql.sqlite.probe import SqliteProbe
from postroom.spi import ClaimRequest
from postroom.sync import Postroom as SyncPostroom
from postroom.testing.conformance.base import seconds
from tests.many.probing import BOX, INTERVAL, Looks, is_silent, put, waiting
from tests.runtime.support import soon


def url_of(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    made = {name: url_of(tmp_path, name) for name in ("one", "two", "three")}
    for url in made.values():
        with SyncPostroom(url) as room:
            room.migrate()
    return made


@pytest.fixture
async def probe(urls: dict[str, str]) -> AsyncIterator[SqliteProbe]:
    made = SqliteProbe(INTERVAL)
    made.set_stores(urls)
    yield made
    await made.close()


@pytest.fixture
async def looks(probe: SqliteProbe) -> Looks:
    """Of a probe that has seen the stores."""
    looks = Looks(probe)
    assert await is_silent(probe, looks)
    return looks


def test_the_url_says_which_probe() -> None:
    assert isinstance(open_probe("sqlite:///one.db"), SqliteProbe)


@pytest.mark.usefixtures("looks")
async def test_a_put_is_found_in_its_store(probe: SqliteProbe, urls: dict[str, str]) -> None:
    await asyncio.to_thread(put, urls["two"])
    assert await soon(probe.wait()) == {"two"}


async def test_a_put_is_found_while_other_connections_are_open(
    probe: SqliteProbe, urls: dict[str, str], looks: Looks
) -> None:
    store = open_store(urls["two"], mode="async")
    await store.claim(BOX, ClaimRequest(uuid4(), seconds(30), 1))
    assert await is_silent(probe, looks), "a look that writes nothing is no change"
    await asyncio.to_thread(put, urls["two"])
    assert await soon(probe.wait()) == {"two"}
    await store.close()


async def test_a_look_at_a_closed_store_is_no_change(probe: SqliteProbe, urls: dict[str, str], looks: Looks) -> None:
    async with waiting(probe) as task:
        for _ in range(3):
            store = open_store(urls["one"], mode="async")
            await store.claim(BOX, ClaimRequest(uuid4(), seconds(30), 1))
            await looks.more(2)
            await store.close()
            await looks.more(2)
        assert not task.done()


async def test_a_missing_file_is_no_error(probe: SqliteProbe, urls: dict[str, str], tmp_path: Path) -> None:
    probe.set_stores({**urls, "new": url_of(tmp_path, "new"), "memory": "sqlite:///:memory:"})
    looks = Looks(probe)
    assert await is_silent(probe, looks)
    await asyncio.to_thread(put, url_of(tmp_path, "new"), deploy_schema=True)
    assert await soon(probe.wait()) == {"new"}


@pytest.mark.usefixtures("looks")
async def test_stores_are_set_while_it_waits(
    urls: dict[str, str], probe: SqliteProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom._stores.sql.sqlite.probe.RECENT_NANOSECONDS", 0)
    looks = Looks(probe)
    probe.set_stores({"one": urls["one"]})
    assert await is_silent(probe, looks)
    async with waiting(probe) as task:
        await asyncio.to_thread(put, urls["two"])
        await looks.more(2)
        assert not task.done()
        probe.set_stores({"other": urls["two"], "one": urls["one"]})
        await looks.more(2)
        assert not task.done(), "of a new store, the probe learns the state"
        probe.set_stores({"other": urls["three"]})
        await looks.more(2)
        assert not task.done(), "a store at another place is a new one"
        await asyncio.to_thread(put, urls["three"])
        assert await soon(task) == {"other"}


@pytest.mark.usefixtures("looks")
async def test_a_file_that_has_just_changed_is_found_once_more(
    probe: SqliteProbe, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change in the same tick of the file system's clock makes no difference to its time."""
    monkeypatch.setattr("postroom._stores.sql.sqlite.probe.RECENT_NANOSECONDS", 60_000_000_000)
    probe.set_stores({"one": urls["one"]})
    await asyncio.to_thread(put, urls["one"])
    assert await soon(probe.wait()) == {"one"}
    monkeypatch.setattr("postroom._stores.sql.sqlite.probe.RECENT_NANOSECONDS", 0)
    assert await soon(probe.wait()) == {"one"}
    assert await is_silent(probe, Looks(probe))


async def test_a_state_that_is_refreshed_is_no_change(probe: SqliteProbe, urls: dict[str, str], looks: Looks) -> None:
    assert not probe.refresh("one")
    await asyncio.to_thread(put, urls["one"])
    assert probe.refresh("one")
    assert not probe.refresh("one")
    assert not probe.refresh("unknown")
    assert await is_silent(probe, looks)


async def test_close_ends_a_pending_wait(probe: SqliteProbe, looks: Looks) -> None:
    async with waiting(probe) as task:
        await looks.more(1)
        await soon(probe.close())
        with pytest.raises(RoomClosed):
            await task
    with pytest.raises(RoomClosed):
        await probe.wait()


async def test_a_wait_can_be_cancelled_and_begun_again(probe: SqliteProbe, urls: dict[str, str], looks: Looks) -> None:
    task = asyncio.create_task(probe.wait())
    await looks.more(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(put, urls["three"])
    assert await soon(probe.wait()) == {"three"}
