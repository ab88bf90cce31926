"""Through uvicorn: streams, slow clients, clients that go, many requests at the same time, and killed processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from postroom import Postroom, State
from postroom.testing import FrozenClock
from postroom.web import record_key
from tests.postgres import clean_database, with_driver
from tests.redis import new_prefix, server
from tests.web.apps import effects_of, fastapi_app, plain_app
from tests.web.serving import open_room, serving

HEADERS = {"Idempotency-Key": '"k-1"', "X-User": "ann", "Content-Type": "application/json"}
BODY = b'{"cents": 5}'
SECONDS = 60.0


class Place(NamedTuple):
    """Where the records are."""

    url: str
    prefix: str


async def make_place(store: str, folder: Path) -> Place:
    if store == "redis":
        return Place(server(), new_prefix())
    if store == "asyncpg":
        return Place(with_driver(clean_database(), "asyncpg"), "")
    url = f"sqlite:///{folder}/room.db"
    room = Postroom(url)
    await room.migrate()
    await room.close()
    return Place(url, "")


@pytest.fixture(params=["aiosqlite", "asyncpg", "redis"])
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Postroom]:
    room = open_room(*await make_place(request.param, tmp_path))
    yield room
    await room.close()


@pytest.fixture(params=["aiosqlite", "asyncpg"])
async def sql_room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Postroom]:
    room = open_room(*await make_place(request.param, tmp_path))
    yield room
    await room.close()


def client_of(port: int) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=SECONDS, limits=httpx2.Limits(max_connections=60)
    )


async def state(room: Postroom, path: str = "/pay") -> State:
    return (await room.guard("http").get(record_key("ann", "POST", path, "k-1"))).state


@pytest.mark.req("CEB-001", "CEB-008", "CEB-049")
async def test_fifty_requests_at_the_same_time(room: Postroom) -> None:
    app = plain_app(room)
    busy = asyncio.Semaphore(0)

    async def inside() -> None:
        for _ in range(49):
            await busy.acquire()

    app.state.inside = inside
    async with serving(app) as port, client_of(port) as client:

        async def pay() -> int:
            response = await client.post("/pay", content=BODY)
            if response.status_code == 409:
                busy.release()
            return response.status_code

        assert sorted(await asyncio.gather(*(pay() for _ in range(50)))) == [201] + [409] * 49
        again = await client.post("/pay", content=BODY)
    assert (again.json(), again.headers["idempotency-replayed"]) == ({"number": 1}, "true")
    assert await effects_of(room) == 1


@pytest.mark.req("CEB-001", "CEB-008")
async def test_fifty_requests_to_a_decorated_route_at_the_same_time(sql_room: Postroom) -> None:
    async with serving(fastapi_app(sql_room, wait=timedelta(seconds=SECONDS))) as port, client_of(port) as client:
        replies = await asyncio.gather(*(client.post("/pay", content=BODY) for _ in range(50)))
    assert {(reply.status_code, reply.content) for reply in replies} == {(201, b'{"number":5,"cents":5}')}
    assert sum("idempotency-replayed" in reply.headers for reply in replies) == 49
    assert await effects_of(sql_room) == 1


@pytest.mark.req("CEB-001")
async def test_a_stream_arrives_whole(room: Postroom) -> None:
    async with serving(plain_app(room)) as port, client_of(port) as client:
        first = await client.post("/stream", content=b"abc")
        again = await client.post("/stream", content=b"abc")
    assert (first.status_code, first.content) == (200, b"abcabcabc")
    assert (again.status_code, again.json()["type"]) == (409, "urn:postroom:idempotency:replay-unavailable")
    assert await effects_of(room) == 1


async def test_a_stream_of_a_decorated_route_arrives_whole(sql_room: Postroom) -> None:
    async with serving(fastapi_app(sql_room)) as port, client_of(port) as client:
        assert (await client.post("/stream")).content == b"ab"
        assert (await client.post("/stream")).status_code == 409
    assert await effects_of(sql_room) == 1


def raw(body: bytes, length: int) -> bytes:
    lines = ["POST /pay HTTP/1.1", "Host: shop", *(f"{name}: {value}" for name, value in HEADERS.items())]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode() + body


async def test_a_slow_body_takes_no_key_and_is_refused(room: Postroom) -> None:
    async with serving(plain_app(room, body_timeout=timedelta(milliseconds=50))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw(b'{"cents"', len(BODY)))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
        writer.transport.abort()
    assert head.startswith(b"HTTP/1.1 408")
    assert await room.guard("http").find() == []


async def test_a_client_that_goes_finds_its_response_later(room: Postroom) -> None:
    await check_client_that_goes(plain_app(room, wait=timedelta(seconds=SECONDS)), room)


async def test_a_client_of_a_decorated_route_that_goes_finds_its_response_later(sql_room: Postroom) -> None:
    await check_client_that_goes(fastapi_app(sql_room, wait=timedelta(seconds=SECONDS)), sql_room)


async def check_client_that_goes(app: Any, room: Postroom) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def inside() -> None:
        begun.set()
        await go.wait()

    app.state.inside = inside
    async with serving(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw(BODY, len(BODY)))
        await asyncio.wait_for(begun.wait(), SECONDS)
        writer.transport.abort()
        go.set()
        async with client_of(port) as client:
            again = await client.post("/pay", content=BODY)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert await effects_of(room) == 1


async def test_an_error_is_a_500_and_releases_the_key(room: Postroom, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    app = plain_app(room)
    app.state.inside = fail
    async with serving(app) as port, client_of(port) as client:
        assert (await client.post("/pay", content=BODY)).status_code == 500
        assert await state(room) is State.WAITING
        assert "k-1" not in caplog.text
        assert "cents" not in caplog.text


# -- killed processes --------------------------------------------------------------------------------------------------


@contextmanager
def process(place: Place, kind: str, when: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "tests.web.serving", *place, kind, when]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started, int(started.stdout.readline())
        finally:
            if started.poll() is None:
                started.kill()


async def killed(place: Place, kind: str, when: str) -> bytes:
    """Sends a request to a process that kills itself. Returns what arrived of the response."""
    with process(place, kind, when) as (started, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw(BODY, len(BODY)))
        arrived = b""
        try:
            while chunk := await asyncio.wait_for(reader.read(1000), SECONDS):
                arrived += chunk
        except ConnectionResetError:
            pass
        writer.transport.abort()
        assert await asyncio.to_thread(started.wait, SECONDS) == -9
    return arrived


async def retried(place: Place, kind: str) -> tuple[Any, int]:
    """Repeats the request to another process, an hour later. Returns the response and the number of effects."""
    clock = FrozenClock(datetime.now(UTC) + timedelta(hours=1))
    room = open_room(*place, clock=clock)
    app: Any = (plain_app if kind == "middleware" else fastapi_app)(room)
    async with serving(app) as port, client_of(port) as client:
        response = await client.post("/pay", content=BODY)
    effects = await effects_of(room)
    await room.close()
    return response, effects


KINDS = [("middleware", "aiosqlite"), ("middleware", "asyncpg"), ("middleware", "redis"), ("decorator", "aiosqlite"),
         ("decorator", "asyncpg")]  # fmt: skip


@pytest.mark.req("CEB-001")
@pytest.mark.parametrize(("kind", "store"), KINDS)
async def test_a_process_that_is_killed_before_the_last_byte_has_stored_the_response(
    kind: str, store: str, tmp_path: Path
) -> None:
    place = await make_place(store, tmp_path)
    arrived = await killed(place, kind, "after")
    assert b"number" not in arrived
    response, effects = await retried(place, kind)
    assert (response.status_code, response.headers["idempotency-replayed"]) == (201, "true")
    assert effects == 1


@pytest.mark.req("CEB-001")
@pytest.mark.parametrize(("kind", "store"), KINDS)
async def test_a_process_that_is_killed_before_the_commit_leaves_a_request_that_runs_again(
    kind: str, store: str, tmp_path: Path
) -> None:
    place = await make_place(store, tmp_path)
    assert await killed(place, kind, "before") == b""
    response, effects = await retried(place, kind)
    assert (response.status_code, response.headers.get("idempotency-replayed")) == (201, None)
    assert effects == (1 if kind == "decorator" else 2)
