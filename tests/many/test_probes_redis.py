"""The probe of Redis: the wake-ups of all stores of a server, on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from postroom import RoomClosed
from postroom._connect import open_probe
from postroom._stores.redis.listener import Listener
from postroom._stores.redis.probe import RedisProbe
from tests.many.probing import BOX, put, waiting
from tests.redis import cluster, new_prefix, server
from tests.runtime.support import soon

PLACES = {"redis": server, "cluster": cluster}


class Subscribed:
    """The prefixes to whose channels listeners are subscribed. What is published before that is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefixes: set[str] = set()
        self._changed = asyncio.Condition()
        read = Listener._read

        async def reading(listener: Listener, pubsub: Any) -> None:
            get_message = pubsub.get_message

            async def noting(**options: Any) -> Any:
                message = await get_message(**options)
                if message is not None and message["type"].endswith("subscribe"):
                    await self._note(message["type"], message["channel"].decode())
                return message

            pubsub.get_message = noting
            await read(listener, pubsub)

        monkeypatch.setattr(Listener, "_read", reading)

    async def _note(self, kind: str, channel: str) -> None:
        prefix = channel.lstrip("{").partition(":")[0]
        async with self._changed:
            (self.prefixes.discard if "unsubscribe" in kind else self.prefixes.add)(prefix)
            self._changed.notify_all()

    async def to(self, *prefixes: str) -> None:
        async with self._changed:
            await soon(self._changed.wait_for(lambda: self.prefixes == set(prefixes)))


@pytest.fixture
def subscribed(monkeypatch: pytest.MonkeyPatch) -> Subscribed:
    return Subscribed(monkeypatch)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param]()


@pytest.fixture
def prefixes() -> dict[str, str]:
    return {name: new_prefix() for name in ("one", "two", "three")}


@pytest.fixture
async def probe(place: str, prefixes: dict[str, str], subscribed: Subscribed) -> AsyncIterator[RedisProbe]:
    made = open_probe(place, prefix=prefixes["one"])
    assert isinstance(made, RedisProbe)
    made.set_stores(
        dict.fromkeys(prefixes, place), prefixes={"two": prefixes["two"], "three": prefixes["three"]}, boxes=[BOX.key]
    )
    yield made
    await made.close()


@pytest.mark.parametrize("store", ["one", "two"])
async def test_a_put_is_found_in_its_store(
    probe: RedisProbe, place: str, prefixes: dict[str, str], subscribed: Subscribed, store: str
) -> None:
    async with waiting(probe) as task:
        await subscribed.to(*prefixes.values())
        assert not task.done()
        await asyncio.to_thread(put, place, prefix=prefixes[store])
        assert await soon(task) == {store}


async def test_puts_between_two_waits_are_found(
    probe: RedisProbe, place: str, prefixes: dict[str, str], subscribed: Subscribed
) -> None:
    async with waiting(probe):
        await subscribed.to(*prefixes.values())
    await asyncio.to_thread(put, place, prefix=prefixes["one"])
    await asyncio.to_thread(put, place, prefix=prefixes["two"])
    found: set[str] = set()
    while found != {"one", "two"}:
        found |= await soon(probe.wait())


async def test_stores_are_set_while_it_waits(
    probe: RedisProbe, place: str, prefixes: dict[str, str], subscribed: Subscribed
) -> None:
    new = new_prefix()
    async with waiting(probe) as task:
        await subscribed.to(*prefixes.values())
        probe.set_stores({})
        await subscribed.to()
        probe.set_stores({"one": place, "new": place}, prefixes={"new": new}, boxes=[BOX.key])
        await subscribed.to(prefixes["one"], new)
        await asyncio.to_thread(put, place, prefix=prefixes["two"])
        await asyncio.to_thread(put, place, prefix=new)
        assert await soon(task) == {"new"}
    probe.set_stores({})
    async with waiting(probe) as task:
        await asyncio.sleep(0)
        subscribed.prefixes.clear()  # the connection is closed
        probe.set_stores({"two": place}, prefixes=prefixes, boxes=[BOX.key])
        await subscribed.to(prefixes["two"])
        await asyncio.to_thread(put, place, prefix=prefixes["two"])
        assert await soon(task) == {"two"}


def connections(name: str) -> list[Any]:
    with redis.Redis.from_url(server()) as client:
        listed: Any = client.client_list()
        return [each for each in listed if each["name"] == name]


async def test_one_connection_that_is_made_again(subscribed: Subscribed) -> None:
    name, other = new_prefix(), new_prefix()
    url = f"{server()}?client_name={name}"
    probe = open_probe(url)
    assert isinstance(probe, RedisProbe)
    stores = {store: new_prefix() for store in ("one", "two", "three")}
    probe.set_stores(dict.fromkeys(stores, url), prefixes=stores)
    async with waiting(probe) as task:
        await subscribed.to(*stores.values())
        [connection] = await asyncio.to_thread(connections, name)
        with redis.Redis.from_url(server()) as client:
            client.client_kill_filter(_id=connection["id"])
        with pytest.raises(ConnectionError):
            await soon(task)
    subscribed.prefixes.clear()
    async with waiting(probe) as task:
        await subscribed.to(*stores.values())
        assert len(await asyncio.to_thread(connections, name)) == 1
        await asyncio.to_thread(put, server(), prefix=other)
        await asyncio.to_thread(put, server(), prefix=stores["two"])
        assert await soon(task) == {"two"}
    await probe.close()
    assert not await asyncio.to_thread(connections, name)


async def test_a_url_that_fails_does_not_stop_the_others(subscribed: Subscribed) -> None:
    prefix = new_prefix()
    probe = open_probe(server(), prefix=prefix)
    assert probe is not None
    probe.set_stores({"missing": "redis://127.0.0.1:1", "one": server()})
    with pytest.raises(redis.ConnectionError):
        await soon(probe.wait())
    async with waiting(probe) as task:
        await subscribed.to(prefix)
        await asyncio.to_thread(put, server(), prefix=prefix)
        assert await soon(task) == {"missing", "one"}, "they have the same channel"
    await probe.close()


@pytest.mark.parametrize("with_stores", [True, False])
async def test_close_ends_a_pending_wait(
    probe: RedisProbe, prefixes: dict[str, str], subscribed: Subscribed, with_stores: bool
) -> None:
    if not with_stores:
        probe.set_stores({})
    async with waiting(probe) as task:
        await (subscribed.to(*prefixes.values()) if with_stores else asyncio.sleep(0))
        await soon(probe.close())
        with pytest.raises(RoomClosed):
            await task
    with pytest.raises(RoomClosed):
        await probe.wait()
