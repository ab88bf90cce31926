"""What happens when a reply is lost, and which errors are transient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import exceptions
from tools.servers.base import ServerMissing, missing
from tools.servers.proxy import Proxy
from tools.servers.redis import RedisServer

from postroom.errors import NotReplicated, RoomClosed
from postroom.spi import Box, ClaimRequest, Draft, NamedTarget, ReceiptStatus, Settlement, State
from postroom.testing.conformance.base import ALICE, seconds
from tests.redis import new_prefix, open_at
from tests.support import settled

BOX = Box("inbox", "box")


@pytest.fixture(scope="module")
def private() -> Iterator[RedisServer]:
    try:
        server = RedisServer()
    except ServerMissing as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture
def proxy(private: RedisServer) -> Iterator[Proxy]:
    with Proxy(*private.address) as proxy:
        yield proxy


def scripts_run(server: RedisServer) -> int:
    return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])


@pytest.mark.req("RHI-050")
@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_a_script_whose_reply_was_lost_is_not_sent_again_by_the_client(
    private: RedisServer, proxy: Proxy, mode: Any
) -> None:
    store = open_at(f"redis://{proxy.host}:{proxy.port}/0", mode, prefix=new_prefix(of_shared_server=False))
    await settled(store.put(BOX, [Draft("s", "first")]))
    await settled(store.settle(BOX, [Settlement.done(NamedTarget(ALICE, "unknown"))]))  # the server knows the scripts
    before = scripts_run(private)
    cut = proxy.cut_after(lambda data: b"EVALSHA" in data)
    with pytest.raises(exceptions.ConnectionError) as lost:
        await settled(store.put(BOX, [Draft("s", "second")]))
    assert cut.wait(10)
    assert store.is_transient(lost.value)
    assert scripts_run(private) == before + 1
    # A second call, as a room makes it, finds the result of the first.
    [again] = await settled(store.put(BOX, [Draft("s", "second")]))
    assert again.status is ReceiptStatus.DUPLICATE
    messages = await settled(store.claim(BOX, ClaimRequest(ALICE, seconds(30), 10)))
    cut = proxy.cut_after(lambda data: b"EVALSHA" in data)
    done = [Settlement.done(message.claim) for message in messages]
    with pytest.raises(exceptions.ConnectionError):
        await settled(store.settle(BOX, done))
    assert cut.wait(10)
    assert await settled(store.settle(BOX, done)) == [False, False]
    assert (await settled(store.counts(BOX)))[State.DONE] == 2
    await settled(store.close())


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_a_closed_store_says_so(private: RedisServer, mode: Any) -> None:
    store = open_at(private.url(), mode, prefix=new_prefix(of_shared_server=False))
    await settled(store.counts(BOX))
    await settled(store.close())
    with pytest.raises(RoomClosed):
        await settled(store.put(BOX, [Draft("s", "1")]))


PASSING = [
    exceptions.ConnectionError("gone"),
    exceptions.TimeoutError("silent"),
    exceptions.BusyLoadingError("loading"),
    exceptions.ReadOnlyError("a replica"),
    exceptions.ClusterDownError("down"),
    exceptions.MasterDownError("down"),
    exceptions.TryAgainError("moving"),
    exceptions.SlotNotCoveredError("no node"),
    exceptions.MaxConnectionsError("too many"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    exceptions.ResponseError("BUSY Redis is busy running a script."),
    exceptions.ResponseError("Error running script (call to f_1): @user_script:1: -READONLY You can't write"),
    ConnectionResetError(),
    TimeoutError(),
]
LASTING = [
    exceptions.AuthenticationError("WRONGPASS"),
    exceptions.AuthorizationError("no"),
    exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    exceptions.ResponseError("ERR user_script:1: BUSYBODY"),
    exceptions.OutOfMemoryError("full"),
    exceptions.NoPermissionError("no"),
    NotReplicated("0 of 1"),
    ValueError("wrong"),
    RoomClosed(),
]


def test_transient_errors_are_distinguished_from_lasting_ones() -> None:
    store = open_at("redis://host", "sync")
    assert [error for error in PASSING if not store.is_transient(error)] == []
    assert [error for error in LASTING if store.is_transient(error)] == []


async def test_a_wrong_password_is_not_waited_out(private: RedisServer) -> None:
    private.query("ACL", "SETUSER", "ann", "on", ">right", "~*", "&*", "+@all")
    store = open_at(private.url().replace("redis://", "redis://ann:wrong@"), "async")
    with pytest.raises(exceptions.AuthenticationError) as refused:
        await store.counts(BOX)
    assert not store.is_transient(refused.value)
    await store.close()
