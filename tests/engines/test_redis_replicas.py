"""Writes that wait for replicas, and a master that Sentinel finds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import RedisServer
from tools.servers.redis_cluster import RedisCluster
from tools.servers.redis_sentinel import RedisSentinel

from postroom.errors import NotReplicated
from postroom.spi import Box, ClaimRequest, Draft, ReceiptStatus, Settlement, State, StoredMessage
from postroom.testing.conformance.base import ALICE, seconds
from tests.redis import open_at
from tests.support import settled

BOX = Box("inbox", "box")
BOTH_MODES = pytest.mark.parametrize("mode", ["async", "sync"])


@pytest.fixture(scope="module")
def primary() -> Iterator[RedisServer]:
    try:
        server = RedisServer()
    except ServerMissing as error:
        missing(str(error))
    with server, RedisServer.replica_of(server):
        server.wait_for_replicas(1)
        yield server


@BOTH_MODES
async def test_a_write_that_replicas_have_returns(primary: RedisServer, mode: Any) -> None:
    store = open_at(f"{primary.url()}?wait_replicas=1&wait_timeout=9000", mode, prefix=f"returns_{mode}")
    await settled(store.put(BOX, [Draft("s", "1")]))
    [message] = await settled(store.claim(BOX, ClaimRequest(ALICE, seconds(30), 1)))
    assert message.message_id == "1"
    assert (await settled(store.counts(BOX)))[State.CLAIMED] == 1
    await settled(store.close())


@BOTH_MODES
async def test_a_put_that_too_few_have_is_an_error_and_stands(primary: RedisServer, mode: Any) -> None:
    store = open_at(f"{primary.url()}?wait_replicas=2&wait_timeout=1", mode, prefix=f"few_{mode}")
    with pytest.raises(NotReplicated, match="1 of 2 replicas") as caught:
        await settled(store.put(BOX, [Draft("s", "1")]))
    assert not store.is_transient(caught.value), "to repeat it would only find that it is there"
    assert (await settled(store.counts(BOX)))[State.WAITING] == 1, "a read waits for no replica, and the write stands"
    await settled(store.close())
    plain = open_at(primary.url(), mode, prefix=f"few_{mode}")
    assert [r.status for r in await settled(plain.put(BOX, [Draft("s", "1")]))] == [ReceiptStatus.DUPLICATE]
    await settled(plain.close())


@BOTH_MODES
async def test_a_worker_goes_on_without_replicas(
    primary: RedisServer, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """If a claim raised, no worker would have its messages until the lease ends. An outcome is stored in any case."""
    caplog.set_level(logging.WARNING, "postroom")
    plain = open_at(primary.url(), mode, prefix=f"worker_{mode}")
    await settled(plain.put(BOX, [Draft("s", str(number)) for number in range(3)]))
    await settled(plain.close())
    store = open_at(f"{primary.url()}?wait_replicas=2&wait_timeout=1", mode, prefix=f"worker_{mode}")
    [first] = await settled(store.claim(BOX, ClaimRequest(ALICE, seconds(30), 1)))
    settled_first, [second] = await settled(store.exchange(BOX, [done(first)], ClaimRequest(ALICE, seconds(30), 1)))
    assert list(settled_first) == [True]
    assert list(await settled(store.settle(BOX, [done(second)]))) == [True]
    logged = [record for record in caplog.messages if "1 of 2 replicas" in record]
    assert len(logged) == 1, "it is logged once, until the replicas have caught up"
    await settled(store.close())


def done(message: StoredMessage) -> Settlement:
    assert message.claim is not None
    return Settlement.done(message.claim)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    try:
        nodes = RedisCluster(3, replicas=1)
    except ServerMissing as error:
        missing(str(error))
    with nodes:
        yield "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in (node.address for node in nodes.servers))


@BOTH_MODES
async def test_a_cluster_waits_for_replicas_too(cluster: str, mode: Any) -> None:
    store = open_at(f"{cluster}?wait_replicas=1&wait_timeout=9000", mode, prefix=f"c_{mode}")
    for number in range(3):
        box = Box("inbox", f"box{number}")  # on different nodes
        assert [r.status for r in await settled(store.put(box, [Draft("s", "1")]))] == [ReceiptStatus.NEW]
    await settled(store.close())
    store = open_at(f"{cluster}?wait_replicas=2&wait_timeout=1", mode, prefix=f"c_{mode}")
    with pytest.raises(NotReplicated, match="1 of 2 replicas"):
        await settled(store.put(BOX, [Draft("s", "2")]))
    await settled(store.close())


@pytest.fixture(scope="module")
def watched() -> Iterator[RedisSentinel]:
    try:
        ensemble = RedisSentinel()
    except ServerMissing as error:
        missing(str(error))
    with ensemble:
        yield ensemble


@BOTH_MODES
async def test_sentinel_names_the_master(watched: RedisSentinel, mode: Any) -> None:
    hosts = ",".join(f"{host}:{port}" for host, port in watched.addresses)
    store = open_at(f"redis+sentinel://{hosts}/{watched.service}/1", mode, prefix=f"s_{mode}")
    assert [r.status for r in await settled(store.put(BOX, [Draft("s", "1")]))] == [ReceiptStatus.NEW]
    assert (await settled(store.counts(BOX)))[State.WAITING] == 1
    if mode == "async":
        assert await store.wait() == frozenset()
        await store.put(BOX, [Draft("s", "2")])
        assert await store.wait() == {BOX.key}
    await settled(store.close())
