"""Requests that the service does not accept: problem details, and nothing is stored."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from postroom._stores.memory import MemoryStore
from postroom.errors import ArgumentValueError
from postroom.service.settings import Settings
from postroom.service.tokens import parse_tokens
from tests.service.conftest import TOKEN, serving

Client = httpx2.AsyncClient
JSON = {"Content-Type": "application/json"}
BEGIN = "/v1/inbox/try-begin"


def problem(response: httpx2.Response, status: int) -> str:
    """Checks that a response has problem details; returns the detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["requestId"] == response.headers["x-request-id"]
    return str(body["detail"])


@pytest.mark.req("C-58", "KOAN-014")
@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "does not fit"),
        (b"[]", "does not fit"),
        (b"{}", "`key`"),
        (b'{"key": ""}', "$.key"),
        (b'{"key": 7}', "$.key"),
        (b'{"key": "' + b"k" * 256 + b'"}', "$.key"),
        (b'{"key": "a\\u0000b"}', "NUL"),
        (b'{"key": "\\ud800"}', ""),
        (b'{"key": "k", "leaseSeconds": 0}', "leaseSeconds"),
        (b'{"key": "k", "leaseSeconds": 1e9}', "leaseSeconds"),
        (b'{"key": "k", "hash": "xyz"}', "hash"),
        (b'{"key": "k", "hash": "abc"}', "even"),
        (b'{"key": "k", "surprise": 1}', "surprise"),
    ],
)
async def test_a_body_that_does_not_fit(body: bytes, detail: str) -> None:
    async with serving() as client:
        response = await client.post(BEGIN, content=body, headers=JSON)
        assert detail in problem(response, 400)
        assert b"k" * 256 not in response.content


@pytest.mark.parametrize("lease", ["x", "1.1.1", "1.1." + "0" * 32 + ".zz", "9" * 40])
async def test_a_lease_id_that_cannot_be_one(lease: str) -> None:
    async with serving() as client:
        response = await client.post("/v1/inbox/release", json={"key": "k", "leaseId": lease})
    assert "leaseId" in problem(response, 400)


async def test_a_lease_id_of_another_key() -> None:
    async with serving() as client:
        lease = (await client.post(BEGIN, json={"key": "a"})).json()["leaseId"]
        response = await client.post("/v1/inbox/mark-processed", json={"key": "b", "leaseId": lease})
        assert "another key" in problem(response, 400)
        assert (await client.get("/v1/inbox/a")).json()["status"] == "Leased"


async def test_paths_methods_and_types() -> None:
    async with serving() as client:
        problem(await client.get("/nothing"), 404)
        refused = await client.delete(BEGIN)
        problem(refused, 405)
        assert "GET" in refused.headers["allow"] or "POST" in refused.headers["allow"]
        problem(await client.post(BEGIN, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
        problem(await client.get("/v1/inbox"), 400)
        problem(await client.get("/v1/inbox?key=a&key=b"), 400)
        problem(await client.get("/v1/inbox?key=a&other=b"), 400)
        problem(await client.get("/v1/inbox/%FF"), 400)


async def test_a_body_that_is_too_long() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async with serving(max_body_bytes=1000) as client:
        problem(await client.post(BEGIN, json={"key": "k" * 2000}), 413)
        problem(await client.post(BEGIN, content=chunks(), headers={**JSON, "Transfer-Encoding": "chunked"}), 413)


async def test_a_body_without_a_length() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"key": "k"}'

    async with serving() as client:
        request = client.build_request("POST", BEGIN, content=chunks(), headers=JSON)
        del request.headers["transfer-encoding"]
        problem(await client.send(request), 411)


async def test_a_body_that_does_not_come() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"key":'
        await asyncio.Event().wait()

    async with serving(body_seconds=0.01) as client:
        response = await client.post(BEGIN, content=chunks(), headers={**JSON, "Transfer-Encoding": "chunked"})
    problem(response, 408)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer wrong-token-wrong", f"Basic {TOKEN}", TOKEN])
async def test_without_a_known_token_nothing_is_stored(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with serving(tokens=f"shop={TOKEN}") as client:
        response = await client.post(BEGIN, json={"key": "k"}, headers=headers)
        assert "token" in problem(response, 401)
        assert response.headers["www-authenticate"].startswith("Bearer")
        authorized = await client.get("/v1/inbox/k", headers={"Authorization": f"Bearer {TOKEN}"})
        assert authorized.json()["status"] == "Unknown"


async def test_any_of_several_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postroom.service")
    async with serving(tokens=f"shop={TOKEN}, mail=another-token-of-ours") as client:
        headers = {"Authorization": "bearer another-token-of-ours"}
        assert (await client.post(BEGIN, json={"key": "secret-key"}, headers=headers)).status_code == 200
    assert "caller=mail" in caplog.text
    for hidden in (TOKEN, "another-token-of-ours", "secret-key"):
        assert hidden not in caplog.text


async def test_a_store_that_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise OSError("password=hunter2")

    monkeypatch.setattr(MemoryStore, "begin", fail)
    async with serving() as client:
        response = await client.post(BEGIN, json={"key": "k"})
    problem(response, 503)
    assert int(response.headers["retry-after"]) >= 1
    assert "hunter2" not in response.text + caplog.text


async def test_more_requests_than_allowed() -> None:
    async with serving(max_in_flight=2, body_seconds=5) as client:
        release = asyncio.Event()
        arrived = asyncio.Semaphore(0)

        async def chunks() -> AsyncIterator[bytes]:
            arrived.release()
            await release.wait()
            yield b'{"key": "k"}'

        headers = {**JSON, "Transfer-Encoding": "chunked"}
        slow = [asyncio.create_task(client.post(BEGIN, content=chunks(), headers=headers)) for _ in range(2)]
        for _ in slow:
            await arrived.acquire()
        response = await client.post(BEGIN, json={"key": "other"})
        problem(response, 503)
        assert "retry-after" in response.headers
        assert (await client.get("/live")).status_code == 200
        release.set()
        assert sorted([(await each).json()["status"] for each in slow]) == ["Acquired", "Busy"]


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("a" * 65, False), ("a b", False)])
async def test_a_request_id_is_returned(given: str, kept: bool) -> None:
    async with serving() as client:
        response = await client.get("/v1", headers={"X-Request-ID": given})
    assert (response.headers["x-request-id"] == given) is kept


@pytest.mark.parametrize("payload", ["Ð", "a", "a b=", 7, None])
async def test_a_payload_that_is_no_base64(payload: object) -> None:
    message = {"topic": "t", "payload": payload, "payloadEncoding": "base64", "source": "s", "messageId": "1"}
    async with serving() as client:
        response = await client.post("/v1/inboxes/orders/messages", json=message)
    assert "base64" in problem(response, 400)


@pytest.mark.parametrize("text", ["# old, b=bbbbbbbbbbbbbbbbbbbb", "  # b=bbbbbbbbbbbbbbbbbbbb,c=cccccccccccccccccccc"])
def test_a_comment_has_no_tokens(text: str) -> None:
    assert list(parse_tokens(f"a=aaaaaaaaaaaaaaaaaaaa\n{text}\nd=dddddddddddddddddddd", "file")) == ["a", "d"]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 7200, 59])
def test_a_bound_of_leases_that_would_not_bind(seconds: float) -> None:
    with pytest.raises(ArgumentValueError, match="max_lease_seconds"):
        Settings(max_lease_seconds=seconds)


@pytest.mark.parametrize("name", ["retention_days", "body_seconds", "stop_seconds", "ready_seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_times_that_are_no_numbers(name: str, value: float) -> None:
    with pytest.raises(ArgumentValueError, match=name):
        Settings(**{name: value})  # type: ignore[arg-type]
