"""Whatever a service sends: the client fails closed, in time, with an error that says what to do and has no secret."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time

import pytest

from postroom import Postroom, PostroomError, StorageRetry, sync
from postroom.errors import FeatureMissing, ServiceError, ServiceRefused, ServiceUnavailable
from tests.client.proxy import Canned, listening, response

TOKEN = "hidden-token-of-shop"
ACQUIRED = (
    b'{"begun":[{"status":"acquired","deliveries":1,"claim":{"id":1,"owner":"00000000-0000-0000-0000-0000000000ff",'
    b'"fence":1,"until":"2031-01-01T00:00:00Z","leaseSeconds":30.0}}]}'
)


def room_of(url: str, **options: object) -> Postroom:
    return Postroom(url, token=TOKEN, storage_retry=StorageRetry.NONE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "raw",
    [
        *(
            response(status, ACQUIRED)
            for status in (201, 301, 302, 400, 401, 403, 404, 405, 409, 411, 413, 415, 429, 500, 502)
        ),
        response(200, b""),
        response(200, b"<html>hidden</html>", media_type="text/html"),
        response(200, b"{}"),
        response(200, b'{"begun":[]}'),
        response(200, b'{"begun":[{"status":"acquired"},{"status":"acquired"}]}'),
        response(200, b'{"begun":[{"status":"Yes"}]}'),
        response(200, b'{"begun":[{"status":"acquired","deliveries":1}]}'),
        response(200, b'{"begun":[{"status":"processed","stored":{"result":5,"resultEncoding":"base64"}}]}'),
        response(200, b'{"begun":[{"status":"processed","stored":{"result":"#","resultEncoding":"base64"}}]}'),
        response(200, ACQUIRED.replace(b"30.0", b"1e300")),
        response(200, b'{"begun":[{"status":"processed","stored":{"result":{"a":]}}]}'),
        response(200, ACQUIRED[:-9]),
        response(200, b"[" * 100_000),
        response(200, b"\xff\xfe"),
    ],
)
async def test_no_response_but_the_expected_one_lets_a_handler_run(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    caplog.set_level(logging.DEBUG)
    async with listening(Canned(raw)) as url:
        room = room_of(f"{url}?timeout=0.3")

        @room.guard("billing").once("key")
        async def charge(key: str) -> None:
            ran.append(key)

        with pytest.raises(ServiceError) as raised:
            await charge("hidden-key")
        await room.close()
    assert ran == []
    assert isinstance(raised.value, PostroomError)
    for text in (str(raised.value), repr(raised.value), repr(room), repr(room.store.inner), caplog.text):
        assert "hidden" not in text


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "POSTROOM_TOKEN"), (404, "postroom serve"), (413, "max_body_bytes")]
)
async def test_a_refusal_says_what_to_do(status: int, advice: str) -> None:
    server = Canned(response(status))
    async with listening(server) as url:
        room = room_of(url)
        with pytest.raises(ServiceRefused, match=advice) as raised:
            await room.guard("billing").try_begin("a")
        await room.close()
    assert raised.value.status == status
    assert pickle.loads(pickle.dumps(raised.value)).status == status
    assert len(server.requests) == 1  # a repetition would be refused as well


async def test_retry_after_is_honoured_within_the_time_of_the_call() -> None:
    server = Canned(response(503, headers="Retry-After: 1\r\n"), response(200, ACQUIRED))
    async with listening(server) as url:
        room = room_of(url)
        began = time.monotonic()
        assert (await room.guard("billing").try_begin("a")).status == "acquired"
        assert time.monotonic() - began >= 1
        await room.close()
    assert len(server.requests) == 2


async def test_a_longer_retry_after_ends_the_call_at_once() -> None:
    server = Canned(response(503, headers="Retry-After: 3600\r\n"))
    async with listening(server) as url:
        room = room_of(url)
        began = time.monotonic()
        with pytest.raises(ServiceUnavailable, match="overloaded"):
            await room.guard("billing").try_begin("a")
        assert time.monotonic() - began < 5
        await room.close()
    assert len(server.requests) == 1


async def test_a_service_that_sends_nothing() -> None:
    async with listening(Canned(b"")) as url:
        room, sync_room = room_of(f"{url}?timeout=0.3"), sync.Postroom(f"{url}?timeout=0.3", token=TOKEN)
        async with asyncio.timeout(20):
            with pytest.raises(ServiceUnavailable, match="does not respond"):
                await room.guard("billing").try_begin("a")
            with pytest.raises(ServiceUnavailable, match="does not respond"):
                await asyncio.to_thread(sync_room.guard("billing").try_begin, "a")
        await room.close()
        sync_room.close()


async def test_the_end_of_a_lease_is_by_the_clock_of_the_caller() -> None:
    """The service says 30 seconds; its clock is years ahead."""
    async with listening(Canned(response(200, ACQUIRED))) as url:
        room = room_of(url)
        begun = await room.guard("billing").try_begin("a")
        await room.close()
    assert begun.claim is not None
    assert 25 < begun.claim.until.timestamp() - time.time() <= 30


async def test_the_token_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_TOKEN", "hidden-token-of-env")
    server = Canned(response(200, ACQUIRED))
    async with listening(server) as url:
        for room in (Postroom(url), room_of(url)):
            await room.guard("billing").try_begin("a")
            inner = room.store
            while hasattr(inner, "inner"):
                inner = inner.inner
            assert "hidden" not in repr([vars(room.store), inner, vars(inner), vars(inner._transport)])
            await room.close()
    sent = [request.lower() for request in server.requests]
    assert b"authorization: bearer hidden-token-of-env" in sent[0]
    assert b"authorization: bearer hidden-token-of-shop" in sent[1]


@pytest.mark.parametrize(("durable", "is_refused"), [(b"true", False), (b"false", True)])
async def test_require_durable_asks_the_service(durable: bytes, is_refused: bool) -> None:
    info = b'{"service":"postroom","version":"1","protocols":["v1"],"auth":"none","durable":%s}' % durable
    server = Canned(response(200, info), response(200, ACQUIRED))
    async with listening(server) as url:
        room = room_of(url, require_durable=True)
        if is_refused:
            with pytest.raises(FeatureMissing, match="require_durable"):
                await room.guard("billing").try_begin("a")
            assert len(server.requests) == 1
        else:
            assert (await room.guard("billing").try_begin("a")).status == "acquired"
        await room.close()
