"""Where a URL leads, and what is refused before anything is opened."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
import redis
import redis.asyncio
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import RedisServer

from postroom._stores.redis.url import _read
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.spi import Box, Draft
from tests.redis import keys_of, new_prefix, open_at, server
from tests.support import settled

BOX = Box("inbox", "box")


def place(url: str) -> Any:
    scheme, _, rest = url.partition("://")
    return _read(scheme, rest)[0]


@pytest.mark.req("RHI-047")
def test_urls_are_read() -> None:
    one = place("rediss://ann:p%40ss@db.example:7000/3?socket_timeout=5")
    assert (one.kind, one.tls, one.shown) == ("single", True, "db.example:7000/3")
    assert one.url == "rediss://ann:p%40ss@db.example:7000/3?socket_timeout=5"
    watched = place("redis+sentinel://ann:p%40ss@h1:26379,h2/orders/2")
    assert (watched.kind, watched.service, watched.database) == ("sentinel", "orders", 2)
    assert watched.hosts == (("h1", 26379), ("h2", 26379))
    assert (watched.username, watched.password) == ("ann", "p@ss")
    many = place("redis+cluster://h1:7000,h2:7001,[::1]:7002")
    assert many.hosts == (("h1", 7000), ("h2", 7001), ("::1", 7002))
    assert place("unix:///run/redis.sock?db=1").url == "unix:///run/redis.sock?db=1"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis://ann:hid#den@host", "percent-encoded"),
        ("redis://ann:hid@den@host", "percent-encoded"),
        ("redis://ann:hid/den@host", "percent-encoded"),
        ("redis://host:hidden", "percent-encoded"),
        ("redis://host/hidden", "a number"),
        ("redis://h1,h2", "redis+cluster"),
        ("redis+sentinel://h1:26379", "names the service"),
        ("redis+cluster://h1/3", "only the database 0"),
        ("redis+other://h1", "there are redis://"),
        ("redis+cluster://h1?socket_timeout=5", "knows no socket_timeout"),
        ("redis://h?pool_size=0", "pool_size"),
        ("redis://h?wait_replicas=many", "wait_replicas"),
        ("redis://h?wait_timeout=-1", "wait_timeout"),
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(url: str, hint: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        open_at(url, "sync")
    assert hint in str(caught.value)
    assert "hid" not in str(caught.value).replace("hidden by", "")


def test_names_have_no_credentials() -> None:
    assert open_at("redis://ann:secret-word@host:1/2", "sync").name == "redis:host:1/2"
    assert "secret-word" not in open_at("redis+cluster://ann:secret-word@h1,h2", "async").name


def test_a_schema_means_nothing_here() -> None:
    with pytest.raises(ArgumentValueError, match="knows no schema"):
        open_at("redis://h", "sync", schema="shop")


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_a_socket_file_will_do(mode: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "s"
    try:
        private = RedisServer({"unixsocket": str(path)})
    except ServerMissing as error:
        missing(str(error))
    with private:
        store = open_at(f"unix://{path}?db=2", mode)
        assert store.name == f"redis:{path}"
        assert len(await settled(store.put(BOX, [Draft("s", "1")]))) == 1
        if mode == "async":
            assert await store.wait() == frozenset()
        await settled(store.close())
        assert private.info("keyspace").keys() == {"db2"}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_pools_of_another_kind_are_refused(mode: Any) -> None:
    other = redis.Redis() if mode == "async" else redis.asyncio.Redis()
    for pool in (other, object(), "redis://h"):
        with pytest.raises(ArgumentTypeError, match="takes one of"):
            open_at("redis://", mode, pool=pool)
    kit: Any = redis.asyncio if mode == "async" else redis
    with pytest.raises(ArgumentValueError, match="decode_responses=False"):
        open_at("redis://", mode, pool=kit.Redis(decode_responses=True))


def test_a_users_client_is_used_and_stays_open() -> None:
    prefix = new_prefix()
    with redis.Redis.from_url(server(), client_name=f"c{secrets.token_hex(4)}") as client:
        store = open_at("redis://", "sync", pool=client, prefix=prefix)
        assert store.name == "redis:the given pool"
        store.put(BOX, [Draft("s", "1")])
        store.close()
        assert client.ping()
    pool = redis.ConnectionPool.from_url(server())
    again = open_at("redis://", "sync", pool=pool, prefix=prefix)
    assert len(again.put(BOX, [Draft("s", "2")])) == 1
    again.close()
    pool.disconnect()


async def test_a_users_async_client_is_used_and_stays_open() -> None:
    async with redis.asyncio.Redis.from_url(server()) as client:
        store = open_at("redis://", "async", pool=client, prefix=new_prefix())
        assert len(await store.put(BOX, [Draft("s", "1")])) == 1
        await store.close()
        assert await client.ping()


def test_a_prefix_begins_every_key() -> None:
    prefix = new_prefix()
    store = open_at(server(), "sync", prefix=prefix)
    store.put(BOX, [Draft("s", "1")])
    store.close()
    assert keys_of(prefix) == {
        f"{{{prefix}}}:ids",
        f"{{{prefix}}}:boxes",
        *(f"{{{prefix}:inbox:box}}:{name}" for name in ("meta", "messages", "dedup", "index", "pages", "pending")),
    }
