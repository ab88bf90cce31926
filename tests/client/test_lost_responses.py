"""Responses that are lost after the service has stored the request: a repetition finds what the first one did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from postroom import GuardBusy, Postroom, StorageRetry, sync
from postroom.errors import ServiceUnavailable
from tests.client.proxy import Proxy, listening
from tests.client.serving import TOKEN


@pytest.fixture
async def proxy(service: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(service)
    async with listening(proxy):
        yield proxy


@pytest.fixture(params=["async", "sync"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class AnyGuard:
    """The verbs of a guard in either mode. Those of a sync guard run in a thread."""

    def __init__(self, mode: str, url: str) -> None:
        options = {"token": TOKEN, "storage_retry": StorageRetry.NONE}  # the client itself repeats requests
        self._sync = sync.Postroom(url, **options) if mode == "sync" else None  # type: ignore[arg-type]
        self._async = None if mode == "sync" else Postroom(url, **options)  # type: ignore[arg-type]

    async def call(self, verb: str, *args: object, **kwargs: object) -> object:
        if self._sync is not None:
            return await asyncio.to_thread(getattr(self._sync.guard("billing"), verb), *args, **kwargs)
        assert self._async is not None
        return await getattr(self._async.guard("billing"), verb)(*args, **kwargs)

    async def close(self) -> None:
        if self._async is not None:
            await self._async.close()
        if self._sync is not None:
            self._sync.close()


@pytest.fixture
async def guard(mode: str, proxy: Proxy) -> AsyncIterator[AnyGuard]:
    guard = AnyGuard(mode, proxy.url)
    yield guard
    await guard.close()


async def test_a_begin_whose_response_was_lost_acquires(guard: AnyGuard, proxy: Proxy) -> None:
    proxy.to_lose = 2
    begun = await guard.call("try_begin", "a")
    assert (begun.status, begun.deliveries) == ("acquired", 1)  # type: ignore[attr-defined]
    assert len(proxy.requests) == 3
    assert (await guard.call("try_begin", "a")).status == "busy"  # type: ignore[attr-defined]


async def test_a_completion_whose_response_was_lost_is_recorded(guard: AnyGuard, proxy: Proxy) -> None:
    begun = await guard.call("try_begin", "a")
    proxy.to_lose = 1
    assert await guard.call("mark_processed", begun, result={"sum": 3}) is True
    again = await guard.call("try_begin", "a")
    assert (again.status, again.result) == ("processed", {"sum": 3})  # type: ignore[attr-defined]


async def test_each_repetition_has_the_same_owner_and_the_same_body(guard: AnyGuard, proxy: Proxy) -> None:
    proxy.to_lose = 1
    await guard.call("try_begin", "a")
    first, second = (request.partition(b"\r\n\r\n")[2] for request in proxy.requests)
    assert first == second
    assert b'"owner":"' in first


async def test_a_handler_runs_once_while_every_second_response_is_lost(proxy: Proxy) -> None:
    ran: list[str] = []
    async with Postroom(proxy.url, token=TOKEN) as room:

        @room.guard("billing", keep_results=True).once("key")
        async def charge(key: str) -> str:
            ran.append(key)
            return key

        for number in range(10):
            key = f"k{number // 2}"
            proxy.to_lose = number % 2
            with suppress(GuardBusy):
                assert await charge(key) == key
    assert ran == [f"k{number}" for number in range(5)]


async def test_a_message_whose_response_was_lost_is_stored_once(proxy: Proxy) -> None:
    room = Postroom(proxy.url, token=TOKEN)
    proxy.to_lose = 1
    receipt = await room.inbox("orders").enqueue("order.placed", {"id": 1}, source="shop", message_id="1")
    assert receipt.status == "duplicate"  # the first request has stored it
    await room.close()


async def test_a_call_ends_in_time_if_all_responses_are_lost(proxy: Proxy) -> None:
    room = Postroom(f"{proxy.url}?timeout=0.5", token=TOKEN, storage_retry=StorageRetry.NONE)
    proxy.to_lose = 1000
    async with asyncio.timeout(10):
        with pytest.raises(ServiceUnavailable, match="does not respond"):
            await room.guard("billing").try_begin("a")
    assert len(proxy.requests) > 1
    await room.close()
