"""The probe of PostgreSQL: into which databases of a server rows were inserted, on one connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from postroom import RoomClosed
from postroom._connect import open_probe, open_store
from postroom._stores.sql.postgres.probe import PostgresProbe
from postroom._stores.sql.postgres.url import _probe_pool
from postroom.spi import ClaimRequest
from postroom.sync import Postroom as SyncPostroom
from postroom.testing.conformance.base import seconds
from tests.many.probing import BOX, INTERVAL, Looks, is_silent, put, waiting
from tests.postgres import create_database, server, shared_database, with_driver
from tests.runtime.support import soon


@functools.cache
def second_database() -> str:
    url = create_database()
    with SyncPostroom(url) as room:
        room.migrate()
    return url


@pytest.fixture(params=["asyncpg", "psycopg"])
def urls(request: pytest.FixtureRequest) -> dict[str, str]:
    return {
        "one": with_driver(shared_database(), request.param),
        "two": with_driver(second_database(), request.param),
    }


@pytest.fixture
async def probe(urls: dict[str, str]) -> AsyncIterator[PostgresProbe]:
    made = PostgresProbe(_probe_pool, INTERVAL)
    made.set_stores(urls)
    yield made
    await made.close()
    assert await ended(urls), "the connection is closed"


@pytest.fixture
async def looks(probe: PostgresProbe) -> Looks:
    """Of a probe that has seen the stores."""
    looks = Looks(probe)
    assert await is_silent(probe, looks)
    return looks


def plain(url: str) -> str:
    return url.replace("+asyncpg", "").replace("+psycopg", "")


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def sessions(urls: dict[str, str]) -> list[tuple[int, str]]:
    """The process ids and databases of our sessions."""
    with psycopg.connect(server(), autocommit=True) as connection:
        return connection.execute(
            "SELECT pid, datname FROM pg_stat_activity WHERE application_name = 'postroom' AND datname = ANY (%s)",
            ([name_of(url) for url in urls.values()],),
        ).fetchall()


async def ended(urls: dict[str, str]) -> bool:
    """Returns True when there is no session. The server ends one a moment after the client."""
    for _ in range(500):
        if not await asyncio.to_thread(sessions, urls):
            return True
    return False


def on_server(statement: str, *parameters: Any) -> None:
    with psycopg.connect(server(), autocommit=True) as connection:
        connection.execute(statement.encode(), parameters)


def test_the_url_says_which_probe() -> None:
    assert isinstance(open_probe("postgresql://db/one"), PostgresProbe)


@pytest.mark.usefixtures("looks")
async def test_a_put_is_found_in_its_store(probe: PostgresProbe, urls: dict[str, str]) -> None:
    """The session of the put ends, so its counts are there at once."""
    await asyncio.to_thread(put, plain(urls["two"]))
    assert await soon(probe.wait()) == {"two"}


async def test_an_update_is_no_change(probe: PostgresProbe, urls: dict[str, str]) -> None:
    """A look at a store updates a row at most, so it does not lead to another look."""
    for _ in range(3):
        await asyncio.to_thread(put, plain(urls["one"]))
    looks = Looks(probe)
    assert await is_silent(probe, looks)
    found = []
    for _ in range(3):  # an ANALYZE in one of them does not matter
        async with waiting(probe) as task:
            store = open_store(urls["one"], mode="async")
            assert await store.claim(BOX, ClaimRequest(uuid4(), seconds(30), 1))
            await store.close()
            await looks.more(3)
            found.append(task.done())
    assert not all(found)


async def test_it_works_with_the_settings_for_pgbouncer(probe: PostgresProbe, urls: dict[str, str]) -> None:
    looks = Looks(probe)
    probe.set_stores({store: f"{url}?pgbouncer=true&application_name=postroom" for store, url in urls.items()})
    assert await is_silent(probe, looks)
    await asyncio.to_thread(put, plain(urls["two"]))
    assert await soon(probe.wait()) == {"two"}


async def test_there_is_one_connection_for_all_stores(urls: dict[str, str], looks: Looks) -> None:
    assert len(await asyncio.to_thread(sessions, urls)) == 1
    assert looks.done > 1


async def test_stores_in_one_database_are_found_together(probe: PostgresProbe, urls: dict[str, str]) -> None:
    looks = Looks(probe)
    probe.set_stores({**urls, "beside": f"{urls['one']}?application_name=other", "unknown": f"{urls['one']}_not"})
    assert await is_silent(probe, looks)
    await asyncio.to_thread(put, plain(urls["one"]))
    assert await soon(probe.wait()) == {"one", "beside"}


async def test_stores_are_set_while_it_waits(probe: PostgresProbe, urls: dict[str, str], looks: Looks) -> None:
    [(_, connected)] = await asyncio.to_thread(sessions, urls)
    [removed] = [store for store, url in urls.items() if name_of(url) == connected]
    [kept] = urls.keys() - {removed}
    async with waiting(probe) as task:
        await looks.more(1)
        probe.set_stores({kept: urls[kept]})
        await looks.more(2)
        [(_, connected)] = await asyncio.to_thread(sessions, urls)
        assert connected == name_of(urls[kept]), "a connection would prevent that the database is dropped"
        await asyncio.to_thread(put, plain(urls[removed]))
        await looks.more(2)
        assert not task.done()
        await asyncio.to_thread(put, plain(urls[kept]))
        assert await soon(task) == {kept}
    probe.set_stores({})
    async with waiting(probe) as task:
        await looks.more(1)
        assert await ended(urls)


async def test_a_lost_connection_raises_and_the_next_wait_finds_what_was_put(
    probe: PostgresProbe, urls: dict[str, str], looks: Looks
) -> None:
    async with waiting(probe) as task:
        await looks.more(1)
        [(process, _)] = await asyncio.to_thread(sessions, urls)
        await asyncio.to_thread(on_server, "SELECT pg_terminate_backend(%s)", process)
        with pytest.raises((OSError, psycopg.OperationalError, *asyncpg_errors())):
            await soon(task)
    await asyncio.to_thread(put, plain(urls["two"]))
    assert await soon(probe.wait()) == {"two"}
    assert len(await asyncio.to_thread(sessions, urls)) == 1


def asyncpg_errors() -> tuple[type[Exception], ...]:
    import asyncpg

    return asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError


async def test_a_store_that_cannot_be_connected_to_does_not_stop_the_others(
    probe: PostgresProbe, urls: dict[str, str]
) -> None:
    looks = Looks(probe)
    probe.set_stores({"missing": f"{urls['one']}_not", **urls})
    with pytest.raises((psycopg.OperationalError, *asyncpg_errors())):
        await soon(probe.wait())
    assert await is_silent(probe, looks), "another one is tried"
    await asyncio.to_thread(put, plain(urls["two"]))
    assert await soon(probe.wait()) == {"two"}


async def test_close_ends_a_pending_wait(probe: PostgresProbe, looks: Looks) -> None:
    async with waiting(probe) as task:
        await looks.more(1)
        await soon(probe.close())
        with pytest.raises(RoomClosed):
            await task


async def test_close_ends_a_statement(probe: PostgresProbe, urls: dict[str, str], monkeypatch: Any) -> None:
    """A server that does not respond must not delay the stop of a room."""
    monkeypatch.setattr(
        "postroom._stores.sql.postgres.probe.COUNTERS", "SELECT $1::text[]::text, 0 FROM pg_sleep(1000)"
    )
    async with waiting(probe) as task:
        while not await asyncio.to_thread(sessions, urls):
            pass
        await soon(probe.close())
        with pytest.raises(RoomClosed):
            await task
    for process, _ in await asyncio.to_thread(sessions, urls):  # the server need not notice that the client is gone
        await asyncio.to_thread(on_server, "SELECT pg_terminate_backend(%s)", process)
