"""The receiver as an ASGI app: in Starlette and FastAPI, mounted, and in a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from postroom import Postroom, sync
from postroom.errors import ArgumentValueError
from postroom.webhooks import CloudEvents, GitHub, Receiver, Slack, StandardWebhooks, Stripe, asgi
from tests.webhooks.signing import NOW, PROVIDERS, SECRET, github, stripe

BODY = PROVIDERS[0].body


@pytest.fixture
async def room() -> AsyncIterator[Postroom]:
    room = Postroom("memory://")
    yield room
    await room.close()


def client_of(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test")


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
@pytest.mark.parametrize("how", ["add_route", "mount"])
async def test_as_a_route(room: Postroom, kind: Any, how: str) -> None:
    app = kind()
    getattr(app, how)("/hook", Receiver(room.inbox(), Stripe(SECRET), clock=lambda: NOW))
    path = "/hook" if how == "add_route" else "/hook/"
    async with client_of(app) as client:
        assert (await client.post(path, content=BODY, headers=stripe(BODY))).status_code == 200
        bad = await client.post(path, content=BODY + b" ", headers=stripe(BODY))
        assert (bad.status_code, bad.headers["content-type"]) == (401, "application/problem+json")
        other = await client.get(path)
        assert (other.status_code, other.headers["allow"]) == (405, "POST")
    assert [message.message_id for message in await room.inbox().find()] == ["evt_1"]


async def test_a_body_that_is_too_long_is_not_read_to_its_end(room: Postroom) -> None:
    receiver = Receiver(room.inbox(), Stripe(SECRET), max_bytes=10)
    read = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield b"12345678"

    async with client_of(receiver) as client:
        announced = await client.post("/", content=b"x" * 11)
        assert (announced.status_code, announced.headers["connection"]) == (413, "close")
    sent: list[Any] = []
    pieces = chunks()

    async def receive() -> Any:
        return {"type": "http.request", "body": await anext(pieces), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    await receiver({"type": "http", "method": "POST", "headers": []}, receive, send)
    assert (sent[0]["status"], read) == (413, 2)


async def test_a_client_that_disconnects_gets_no_response_and_nothing_is_stored(room: Postroom) -> None:
    messages = [
        {"type": "http.request", "body": BODY[:5], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await Receiver(room.inbox(), Stripe(SECRET))({"type": "http", "method": "POST", "headers": []}, receive, send)
    assert await room.inbox().find() == []


async def test_a_body_that_does_not_arrive_gets_408(room: Postroom, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(asgi.BodyTooSlow):
        await asgi.read_body([], never, 10, seconds=0.01)

    async def too_slow(*_args: object) -> bytes:
        raise asgi.BodyTooSlow

    monkeypatch.setattr(asgi, "read_body", too_slow)
    async with client_of(Receiver(room.inbox(), Stripe(SECRET))) as client:
        assert (await client.post("/", content=b"")).status_code == 408


async def test_other_protocols_are_refused(room: Postroom) -> None:
    nothing: Any = None
    with pytest.raises(ArgumentValueError):
        await Receiver(room.inbox(), Stripe(SECRET))({"type": "websocket"}, nothing, nothing)


NAMES = sorted(
    {name.lower() for provider in PROVIDERS for name in provider.sign(b"")} | {"content-length", "content-type"}
)
NAMES += ["ce-id", "ce-source", "ce-type", "ce-specversion", "ce-time"]
VALUES = st.binary() | st.sampled_from(
    [f"t={NOW},v1=00", str(NOW), "v1,AAAA", "1.0", "application/cloudevents+json", "-1"]
).map(str.encode)


@given(
    st.sampled_from([GitHub(SECRET), Slack(SECRET), StandardWebhooks(SECRET), CloudEvents(signed_by=None)]),
    st.lists(st.tuples(st.sampled_from(NAMES).map(str.encode), VALUES)),
    st.binary(),
    st.booleans(),
)
def test_no_request_gets_a_500(scheme: Any, headers: list[Any], body: bytes, signed: bool) -> None:
    if signed:
        headers = [*headers, *((name.encode(), value.encode()) for name, value in github(body).items())]
    assert asyncio.run(_status(scheme, headers, body)) in {200, 401, 413}


async def _status(scheme: Any, headers: list[Any], body: bytes) -> int:
    room = Postroom("memory://")
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    app = Receiver(room.inbox(), scheme, clock=lambda: NOW)
    await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
    if sent[0]["status"] == 200 and body:
        found = await room.inbox().find()
        assert len(found) >= 1 or body.strip() == b"[]"
    await room.close()
    return int(sent[0]["status"])


def test_what_got_200_is_there_after_kill_9(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    command = [sys.executable, "-m", "tests.webhooks.served", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            body = b'{"ref": "main"}'
            for number in range(5):
                headers = {**github(body), "X-GitHub-Delivery": f"d-{number}"}
                assert httpx2.post(f"http://127.0.0.1:{port}/hook", content=body, headers=headers).status_code == 200
        finally:
            process.kill()
    with sync.Postroom(url) as room:
        assert [message.message_id for message in room.inbox().find()] == [f"d-{number}" for number in range(5)]
