"""What psycopg's pools say of trouble: of ours it is no warning, of the user's it is left alone."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import psycopg_pool
import pytest
from tools.servers.base import wait_for
from tools.servers.proxy import Proxy

from postroom import Postroom, StorageRetry
from postroom import sync as postroom_sync
from postroom._stores.sql.postgres.pools import POOL_NAME
from postroom._stores.wrapper import innermost
from postroom.spi import Waker
from tests.postgres import clean_database, with_driver
from tests.support import settled

PASSWORD = "correct-horse"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    place = urlsplit(clean_database())
    with Proxy(place.hostname or "", place.port or 5432) as made:
        yield made


def through(proxy: Proxy) -> str:
    place = urlsplit(clean_database())
    return place._replace(netloc=f"{place.username}:{PASSWORD}@{proxy.host}:{proxy.port}").geturl()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_lost_connections_of_ours_are_no_warning(
    proxy: Proxy, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = through(proxy)
    room: Any = Postroom(with_driver(url, "psycopg")) if mode == "async" else postroom_sync.Postroom(url)
    box = room.outbox()
    for _ in range(2):  # the first connection is none of the pool's
        await settled(box.enqueue("t", 1))
    proxy.cut()
    await settled(box.enqueue("t", 1))  # tried again
    ours = [record.getMessage() for record in caplog.records if record.name == "postroom"]
    assert [text for text in ours if text.startswith("the pool of connections: ")]
    assert [text for text in warnings(caplog) if "pool" in text] == []
    assert PASSWORD not in caplog.text
    await settled(room.close())


def test_an_outage_is_raised_by_the_verb_and_not_logged_by_the_pool(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    room = postroom_sync.Postroom(through(proxy), storage_retry=StorageRetry.NONE)
    for _ in range(2):
        room.outbox().enqueue("t", 1)
    proxy.refuse()
    proxy.cut()
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError):
            room.outbox().enqueue("t", 1)
    assert [text for text in warnings(caplog) if "pool" in text or "connecting" in text] == []
    assert PASSWORD not in caplog.text
    proxy.accept()
    room.outbox().enqueue("t", 1)
    room.close()


def test_pools_of_the_user_say_what_they_always_said(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    with postroom_sync.Postroom(clean_database()) as room:
        room.outbox().enqueue("t", 1)  # our filter is there
    with psycopg_pool.ConnectionPool(through(proxy), min_size=1, open=True) as pool:
        pool.wait()
        proxy.cut()
        pool.check()
        wait_for(lambda: bool(warnings(caplog)), "a warning")
    assert "discarding broken connection" in warnings(caplog)[0]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_listener_that_was_cut_off_says_so_and_comes_back(driver: str) -> None:
    name = f"listener-{secrets.token_hex(4)}"
    url = with_driver(clean_database(), driver)
    room = Postroom(f"{url}{'&' if '?' in url else '?'}application_name={name}")
    waker: Waker = innermost(room.store)
    assert await waker.wait() == frozenset()
    with psycopg.connect(clean_database(), autocommit=True) as other:
        ended = other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [name]
        )
        assert ended.rowcount == 1
    with pytest.raises(ConnectionError, match="workers poll until it is back"):
        await waker.wait()
    assert await waker.wait() == frozenset()
    await room.close()


async def test_the_text_of_a_pool_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """libpq puts each address that it has tried on a line of its own."""
    caplog.set_level(logging.INFO)
    room = Postroom(with_driver(clean_database(), "psycopg"))
    await room.migrate()
    await room.outbox().enqueue("t", 1)
    logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", POOL_NAME, "first\nsecond\x1b[2J")
    await room.close()
    [text] = [record.getMessage() for record in caplog.records if "second" in record.getMessage()]
    assert text.endswith(r"first\nsecond\x1b[2J")
