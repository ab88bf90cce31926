"""A server that may lose messages is logged, or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
from redis import exceptions
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import RedisServer

from postroom.errors import FeatureMissing
from postroom.spi import Box, ClaimRequest, Draft, Order, Purge, Settlement, State
from postroom.testing.conformance.base import ALICE, seconds
from tests import redis_invariants
from tests.redis import open_at

BOX = Box("inbox", "box")
Start = Callable[..., RedisServer]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(**settings: str) -> RedisServer:
            try:
                server = RedisServer({name.replace("_", "-"): value for name, value in settings.items()})
            except ServerMissing as error:
                missing(str(error))
            return stack.enter_context(server)

        yield start


def complaints(url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged when a store is used for the first time, and the second."""
    store = open_at(url, "sync")
    with caplog.at_level(logging.WARNING, "postroom"):
        store.counts(BOX)
        store.counts(BOX)
    store.close()
    return [record.getMessage() for record in caplog.records]


def refusal(url: str) -> str:
    store = open_at(url, "sync", require_durable=True)
    with pytest.raises(FeatureMissing) as caught:
        store.counts(BOX)
    with pytest.raises(FeatureMissing):
        store.counts(BOX)
    store.close()
    return str(caught.value)


@pytest.mark.parametrize("settings", [{"appendonly": "yes", "save": '""'}, {"appendonly": "yes", "save": "3600 1"}])
def test_a_server_that_writes_to_the_disk_and_evicts_nothing_is_fine(
    start: Start, caplog: pytest.LogCaptureFixture, settings: dict[str, str]
) -> None:
    server = start(**settings)
    assert complaints(server.url(), caplog) == []
    store = open_at(server.url(), "sync", require_durable=True)
    assert sum(store.counts(BOX).values()) == 0
    store.close()


@pytest.mark.req("C-40")
def test_a_server_that_writes_nothing_is_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(save='""')
    [complaint] = complaints(server.url(), caplog)
    assert "neither appendonly nor save" in complaint
    assert "neither appendonly nor save" in refusal(server.url())


@pytest.mark.req("C-40")
def test_a_server_that_evicts_is_logged(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(appendonly="yes", maxmemory_policy="allkeys-lru")
    [complaint] = complaints(server.url(), caplog)
    assert "allkeys-lru" in complaint
    assert "neither" not in complaint
    assert "allkeys-lru" in refusal(server.url())


def test_a_server_with_unknown_settings_is_used_unless_it_must_be_durable(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(save="3600 1")
    server.query("ACL", "SETUSER", "guest", "on", ">secret-word", "~*", "&*", "+@all", "-config")
    url = server.url().replace("redis://", "redis://guest:secret-word@")
    [complaint] = complaints(url, caplog)
    assert "does not report whether it writes snapshots" in complaint
    assert "evicts" not in complaint, "INFO has that"
    assert "secret-word" not in complaint + refusal(url)


def test_a_server_with_unknown_settings_and_a_log_is_fine(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(appendonly="yes", save='""')
    server.query("ACL", "SETUSER", "guest", "on", ">secret-word", "~*", "&*", "+@all", "-config")
    assert complaints(server.url().replace("redis://", "redis://guest:secret-word@"), caplog) == []


def test_a_full_server_refuses_new_messages_and_takes_what_was_done(start: Start) -> None:
    server = start(save="3600 1")
    store = open_at(server.url(), "sync", prefix="full")
    fifo = Box("inbox", "fifo", Order(fifo=True))
    for box in (BOX, fifo):
        store.put(box, [Draft("s", str(n), payload="x" * 1000, group=f"g{n % 3}") for n in range(20)])
    server.query("CONFIG", "SET", "maxmemory", "1")
    for box in (BOX, fifo):
        with pytest.raises(exceptions.ResponseError, match="maxmemory") as refused:
            store.put(box, [Draft("s", "new")])
        assert not store.is_transient(refused.value)
        first, second, *rest = store.claim(box, ClaimRequest(ALICE, seconds(30), 100))
        outcomes = [Settlement.dead(first.claim, error="e"), Settlement.retry(second.claim, delay=seconds(5))]
        kept, _ = store.exchange(
            box, [*outcomes, *(Settlement.done(m.claim) for m in rest)], ClaimRequest(ALICE, seconds(1), 1)
        )
        assert kept[0]
        with redis.Redis.from_url(server.url()) as client:
            counted = store.counts(box)
            assert redis_invariants.complaints(client, "full", box.key, counts=counted) == []
        assert sum(counted.values()) == 20
        assert store.purge(box, Purge(State.DONE, seconds(0), 1000)) == counted[State.DONE] > 0
    assert store.attend([BOX.key], ALICE, seconds(30)).free_in is None  # workers must find what is there
    server.query("CONFIG", "SET", "maxmemory", "0")
    assert len(store.put(BOX, [Draft("s", "new")])) == 1
    store.close()
