"""Hubs: processes send each other the identifiers of stores into which they have put messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from postroom import ArgumentValueError, RoomClosed
from postroom._connect import open_hub
from postroom._stores.hub import ChannelHub
from tests import redis
from tests.many.probing import waiting
from tests.postgres import shared_database, with_driver
from tests.runtime.support import soon

PLACES: dict[str, Callable[[], str]] = {
    "asyncpg": lambda: with_driver(shared_database(), "asyncpg"),
    "psycopg": lambda: with_driver(shared_database(), "psycopg"),
    "redis": redis.server,
    "cluster": redis.cluster,
}
STORES = dict.fromkeys(["one", "two", "a name with spaces"], "")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param]()


@pytest.fixture
async def hubs(place: str) -> AsyncIterator[tuple[ChannelHub, ChannelHub]]:
    """Two hubs that listen to each other."""
    prefix = redis.new_prefix(of_shared_server=False)
    first, second = (open_hub(place, prefix=prefix) for _ in range(2))
    assert isinstance(first, ChannelHub)
    assert isinstance(second, ChannelHub)
    for hub in (first, second):
        hub.set_stores(STORES)
        assert not await soon(hub._channel.receive()), "it has subscribed"
    yield first, second
    await first.close()
    await second.close()


async def test_a_store_is_sent_to_other_processes(hubs: tuple[ChannelHub, ChannelHub]) -> None:
    first, second = hubs
    async with waiting(first) as own:
        first.publish("unknown")
        first.publish("a name with spaces")
        assert await soon(second.wait()) == {"a name with spaces"}
        assert not own.done(), "a process drops what it has sent"
        second.publish("one")
        assert await soon(own) == {"one"}


async def test_many_puts_are_sent_together(hubs: tuple[ChannelHub, ChannelHub]) -> None:
    first, second = hubs
    sent = recorded(first)
    for _ in range(1000):
        first.publish("one")
        first.publish("two")
    await asyncio.sleep(0)
    for _ in range(1000):
        first.publish("one")
    assert first._sending is not None
    await soon(asyncio.wait([first._sending]))
    assert [len(sent.get_nowait()) for _ in range(sent.qsize())] == [2, 1]
    found: set[str] = set()
    while found != {"one", "two"}:
        found |= await soon(second.wait())


async def test_a_process_sends_once_in_a_while(
    hubs: tuple[ChannelHub, ChannelHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom._stores.hub.COALESCE_SECONDS", 3600)
    monkeypatch.setattr("postroom._stores.hub.PAUSE_SECONDS", 0.01)  # so long `close` waits for the hour to pass
    first, second = hubs
    first.publish("one")
    assert await soon(second.wait()) == {"one"}
    first.publish("one")
    second.publish("two")
    assert await soon(first.wait()) == {"two"}
    assert first._pending == {"one"}


async def test_close_sends_what_is_left_and_ends_a_wait(hubs: tuple[ChannelHub, ChannelHub]) -> None:
    first, second = hubs
    async with waiting(first) as task:
        await asyncio.sleep(0)
        first.publish("one")
        await asyncio.sleep(0)
        first.publish("two")
        await soon(first.close())
        with pytest.raises(RoomClosed):
            await task
    first.publish("one")
    assert first._sending is not None
    assert first._sending.done()
    found: set[str] = set()
    while found != {"one", "two"}:
        found |= await soon(second.wait())


def recorded(hub: ChannelHub) -> asyncio.Queue[list[str]]:
    """Returns a queue of what the hub sends."""
    sent: asyncio.Queue[list[str]] = asyncio.Queue()
    send = hub._channel.send

    async def recording(texts: list[str]) -> None:
        sent.put_nowait(texts)
        await send(texts)

    hub._channel.send = recording  # type: ignore[method-assign]
    return sent


@pytest.mark.parametrize("url", ["postgresql+asyncpg://127.0.0.1:1/x", "redis://127.0.0.1:1"])
async def test_a_hub_that_fails_does_not_disturb(url: str, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom._stores.hub.PAUSE_SECONDS", 0.01)
    hub = open_hub(url)
    assert isinstance(hub, ChannelHub)
    sent = recorded(hub)
    with caplog.at_level("INFO", logger="postroom"):
        for _ in range(3):
            hub.publish("one")
            await soon(sent.get())
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "the hub fails" in caplog.records[0].message
    with pytest.raises((OSError, RedisConnectionError)):
        await soon(hub.wait())
    await soon(hub.close())


@pytest.mark.parametrize("url", ["sqlite:///one.db", "memory://", "postgresql://host/shop?pgbouncer=true"])
def test_what_cannot_be_a_hub(url: str) -> None:
    with pytest.raises(ArgumentValueError, match="hub"):
        open_hub(url)
