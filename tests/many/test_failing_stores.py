"""A store that fails: its circuit breaker, and that the others go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import Backoff, Cleaning, Message, Postroom, State, StoreConfig
from postroom._many.breaker import Breaker
from tests.many.conftest import OpenRoom
from tests.many.stores import Handled, Looks, becomes, databases
from tests.runtime.support import Gate, Logged, put, soon

SECRET = "hunter2"


class Outage:
    """Makes a database unreachable for new connections, and ends those that are open."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("+asyncpg", "")
        self._file = Path(self._url.removeprefix("sqlite:///"))

    async def begin(self) -> None:
        await asyncio.to_thread(self._begin)

    async def end(self) -> None:
        await asyncio.to_thread(self._end)

    def _begin(self) -> None:
        if self._url.startswith("sqlite"):
            with open(self._file, "r+b") as file:  # noqa: PTH123 - the header of the file
                self._header = file.read(100)
                file.seek(0)
                file.write(os.urandom(100))
            return
        base, name = self._url.rsplit("/", 1)
        with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false'.encode())
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    def _end(self) -> None:
        if self._url.startswith("sqlite"):
            with open(self._file, "r+b") as file:  # noqa: PTH123
                file.write(self._header)
            return
        base, name = self._url.rsplit("/", 1)
        with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true'.encode())


@pytest.fixture
async def outage(urls: dict[str, str]) -> AsyncIterator[Outage]:
    """Of the store `bolt`, from the beginning."""
    outage = Outage(urls["bolt"])
    await outage.begin()
    yield outage
    await outage.end()


async def test_the_others_go_on_and_it_comes_back(
    open_room: OpenRoom, urls: dict[str, str], outage: Outage, handled: Handled, quick: None
) -> None:
    """One record for each change, and no attempt is counted."""
    room = open_room(urls)
    room.inbox().handler("t")(handled)
    with Logged() as logged:
        async with room:
            await logged.says("store=bolt failed")
            for number in range(20):
                await put(room.router.inbox("acme"), number)
                await put(room.router.inbox("crow"), number)
            await handled.until(*((key, str(number)) for key in ("acme", "crow") for number in range(20)))
            assert await room.is_ready(), "the error of one store does not matter"
            await outage.end()
            await logged.says("store=bolt works again")
            await put(room.router.inbox("bolt"), "1")
            await handled.until(("bolt", "1"))
    changes = [record for record in logged.records if "store=bolt " in record.message and " box=" not in record.message]
    assert [record.levelname for record in changes] == ["WARNING", "INFO"]
    assert "the other stores go on" in changes[0].message


async def test_a_store_whose_looks_succeed_and_whose_claims_fail_is_left_out_once(
    open_room: OpenRoom, urls: dict[str, str], looks: Looks, handled: Handled, quick: None
) -> None:
    """A box of `bolt` has another order in the store, which only a claim finds out."""
    async with Postroom(urls["bolt"]) as other:
        await other.inbox(order="fifo").enqueue("t", "x", source="s", message_id="1", group="g")
    room = open_room(urls)
    room.inbox().handler("t")(handled)
    with Logged() as logged:
        async with room:
            await logged.says("store=bolt is left out")
            await looks.until("bolt", count=4)
            await put(room.router.inbox("acme"), "1")
            await handled.until(("acme", "1"))
    assert len(logged.saying("store=bolt is left out")) == 1
    assert logged.saying("store=bolt works again") == []


@pytest.mark.parametrize("engine", ["asyncpg"], indirect=True)
async def test_an_outage_costs_no_attempts(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, quick: None
) -> None:
    """The outcome of a handler that runs during the outage is stored after it."""
    room = open_room(urls)
    outage, gate = Outage(urls["bolt"]), Gate()

    @room.inbox(max_attempts=2, backoff=Backoff.immediate(), concurrency=2).handler("t")
    async def handle(message: Message[Any]) -> None:
        handled.note(message)
        if message.store == "bolt":
            await gate()

    with Logged() as logged:
        async with room:
            await put(room.router.inbox("bolt"), *range(5))
            await gate.reached(1)
            await outage.begin()
            try:
                gate.open()
                await logged.says("store=bolt failed")
                for number in range(5):
                    await put(room.router.inbox("acme"), number)
                await handled.until(*(("acme", str(number)) for number in range(5)))
            finally:
                await outage.end()
            await logged.says("store=bolt works again")
            await handled.until(*(("bolt", str(number)) for number in range(5)), seconds=20)
            await becomes(lambda: room.health()["inbox:inbox"].in_hand == 0)
    found = await room_messages(urls["bolt"])
    assert [(message.state, message.attempt) for message in found] == [(State.DONE, 0)] * 5
    assert sorted(id_ for store, id_ in handled.seen if store == "bolt") == list("01234"), "each was handled once"
    assert len(logged.saying("store=bolt failed")) == len(logged.saying("store=bolt works again")) == 1


async def room_messages(url: str) -> list[Message[Any]]:
    async with Postroom(url) as room:
        return await room.inbox().find()


async def test_a_store_that_does_not_respond_delays_no_other(
    open_room: OpenRoom, tmp_path: Path, handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts connections and is silent."""
    monkeypatch.setattr("postroom._many.server_queues.SLOW_SECONDS", 0.05)
    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: silent.append(writer), "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    secret_url = f"postgresql+asyncpg://jane:{SECRET}@127.0.0.1:{port}/none"
    stores = {f"silent{number}": StoreConfig(secret_url, prefix=f"p{number}_") for number in range(5)}
    room = open_room({**stores, **databases("asyncpg", tmp_path, ["acme"])})
    room.inbox().handler("t")(handled)
    try:
        async with room:
            await put(room.router.inbox("acme"), "1")
            await handled.until(("acme", "1"), seconds=3)
    finally:
        for writer in silent:
            writer.close()
        server.close()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+asyncpg://jane:{SECRET}@127.0.0.1:1/none",
        f"postgresql+psycopg://jane:{SECRET}@127.0.0.1:1/none",
        f"redis://jane:{SECRET}@127.0.0.1:1/0",
        f"sqlite:////no/such/folder/{SECRET}.db",
    ],
)
async def test_a_password_is_in_no_record(open_room: OpenRoom, url: str, quick: None) -> None:
    room = open_room({"bad": url})
    room.inbox().handler("t")(Handled())
    with Logged() as logged:
        async with room:
            await logged.says("store=bad failed", seconds=20)
            with pytest.raises(Exception) as raised:
                await soon(room.router.inbox("bad").find(), 30)
    assert SECRET not in "".join(f"{record.message}{record.exc_text}" for record in logged.records)
    if not url.startswith("sqlite"):
        assert SECRET not in str(raised.value)


async def test_a_stop_does_not_wait_for_a_failing_store(
    open_room: OpenRoom, urls: dict[str, str], outage: Outage, quick: None
) -> None:
    room = open_room(urls)
    room.inbox().handler("t")(Handled())
    with Logged() as logged:
        await room.start()
        await logged.says("store=bolt failed")
        await soon(room.stop(), 5)
        await soon(room.close(), 5)


async def test_drain_raises_the_error_after_the_others(
    open_room: OpenRoom, urls: dict[str, str], outage: Outage, handled: Handled
) -> None:
    room = open_room(urls)
    room.inbox().handler("t")(handled)
    for key in ("acme", "crow"):
        await put(room.router.inbox(key), "1")
    with pytest.raises(Exception):  # noqa: B017 - the driver's error
        await room.drain()
    assert sorted(handled.stores) == ["acme", "crow"]


async def test_cleanup_raises_the_error_after_the_others(
    open_room: OpenRoom, urls: dict[str, str], outage: Outage
) -> None:
    room = open_room(urls, cleaning=Cleaning(automatic=False))
    room.inbox(retention=timedelta(microseconds=1))
    for key in ("acme", "crow"):
        await room.router.inbox(key).mark_processed("1", "s")
        await asyncio.sleep(0.001)
    with pytest.raises(Exception):  # noqa: B017 - the driver's error
        await room.cleanup()
    for key in ("acme", "crow"):
        assert await room.router.inbox(key).find() == [], key


class TestBreaker:
    def test_pauses_double(self) -> None:
        breaker = Breaker()
        assert not breaker.is_open
        assert breaker.fail(0.0), "it was closed"
        pauses, at = [breaker.until], breaker.until
        for _ in range(8):
            assert not breaker.fail(at)
            pauses.append(breaker.until - at)
            at = breaker.until
        assert all(0.8 * 2**n <= pause <= 1.2 * 2**n for n, pause in enumerate(pauses[:6]))
        assert all(pause <= 72 for pause in pauses)
        assert breaker.succeed() == 0.0
        assert breaker.succeed() is None
        assert breaker.fail(at)
        assert breaker.until - at <= 1.2, "it begins anew"

    def test_failures_of_one_moment_count_once(self) -> None:
        breaker = Breaker()
        breaker.fail(0.0)
        until = breaker.until
        breaker.fail(0.1)
        assert breaker.until == until
