"""The decorator: writes, response and completion are one commit."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom import ArgumentTypeError, ArgumentValueError, CommitUnknown, FeatureMissing, Postroom, State, sync
from postroom.testing import FrozenClock
from postroom.web import ANONYMOUS, idempotent, record_key
from tests.postgres import clean_database, with_driver
from tests.web.apps import effects_of, fastapi_app, nothing, user_of

KEY = {"Idempotency-Key": "k-1", "X-User": "ann"}


@contextlib.asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", headers=KEY) as client:
        yield client


@pytest.fixture
def app(sql_room: Postroom) -> FastAPI:
    return fastapi_app(sql_room, keep_statuses={402})


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as made:
        yield made


async def state(room: Postroom, path: str = "/pay") -> State:
    guard = room.guard("routes", mode="transactional")
    return (await guard.get(record_key("ann", "POST", path, "k-1"))).state


def problem(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].rpartition(":")[2]


@pytest.mark.req("CEB-001", "C-55")
async def test_a_repetition_gets_the_response_of_the_route(client: httpx2.AsyncClient, sql_room: Postroom) -> None:
    first = await client.post("/pay", json={"cents": 5})
    again = await client.post("/pay", json={"cents": 5})
    assert (first.status_code, first.json()) == (201, {"number": 5, "cents": 5})  # as the response model filters
    assert (again.status_code, again.content) == (201, first.content)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert first.headers["x-limit"] == again.headers["x-limit"] == "9"  # set by a dependency
    assert await effects_of(sql_room) == 1


@pytest.mark.req("C-55")
async def test_writes_response_and_completion_commit_together(
    app: FastAPI, client: httpx2.AsyncClient, sql_room: Postroom
) -> None:
    seen: list[Any] = []

    async def look() -> None:
        if "sqlite" not in repr(sql_room):  # whose writer excludes others
            seen.append((await asyncio.create_task(effects_of(sql_room)), await state(sql_room)))

    app.state.after_effect = look
    await client.post("/pay", json={"cents": 5})
    assert seen in ([], [(0, State.CLAIMED)])
    assert (await effects_of(sql_room), await state(sql_room)) == (1, State.DONE)


@pytest.mark.req("CEB-026", "C-55")
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/pay", {"cents": 13}, 500), ("/pay", {"cents": 404}, 404), ("/raw/500", None, 500), ("/raw/409", None, 409),
     ("/raw/422", None, 422), ("/wrong", None, 500)],
)  # fmt: skip
async def test_a_failure_rolls_back_and_is_not_replayed(
    client: httpx2.AsyncClient, sql_room: Postroom, path: str, body: Any, status: int
) -> None:
    for _ in range(2):
        response = await client.post(path, json=body)
        assert (response.status_code, response.headers.get("idempotency-replayed")) == (status, None)
    assert await effects_of(sql_room) == 0
    assert await state(sql_room, path) is State.WAITING


async def test_responses_that_are_kept(client: httpx2.AsyncClient, app: FastAPI, sql_room: Postroom) -> None:
    for path in ("/raw/200", "/raw/303", "/raw/402"):
        first, again = await client.post(path), await client.post(path)
        assert first.headers["set-cookie"] == "a=1"
        assert "set-cookie" not in again.headers
        assert (again.status_code, again.content, again.headers["x-kept"]) == (first.status_code, first.content, "yes")
    assert await effects_of(sql_room) == 3
    assert app.state.background == [200, 303, 402]


async def test_a_response_without_a_body(client: httpx2.AsyncClient, sql_room: Postroom) -> None:
    for _ in range(2):
        response = await client.post("/empty")
        assert (response.status_code, response.content, response.headers["x-empty"]) == (204, b"", "1")
    assert await effects_of(sql_room) == 1


async def test_a_stream_is_not_run_again(client: httpx2.AsyncClient, sql_room: Postroom) -> None:
    assert (await client.post("/stream")).content == b"ab"
    assert problem(await client.post("/stream")) == (409, "replay-unavailable")
    assert await effects_of(sql_room) == 1


async def test_a_form_is_compared_by_its_fields(client: httpx2.AsyncClient, sql_room: Postroom) -> None:
    files = {"file": ("a.txt", b"content")}  # makes it multipart, with another boundary each time
    for _ in range(2):
        assert (await client.post("/form", data={"name": "ann"}, files=files)).json() == {"name": "ann"}
    assert problem(await client.post("/form", data={"name": "bob"}, files=files)) == (422, "reused")
    assert await effects_of(sql_room) == 1


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"X-User": "ann"}, {"cents": 5}, (400, "missing")),
        ({**KEY, "Idempotency-Key": "a b"}, {"cents": 5}, (400, "malformed")),
        ({"Idempotency-Key": "k-1"}, {"cents": 5}, (401, "no-principal")),
    ],
)
async def test_refusals(app: FastAPI, sql_room: Postroom, headers: Any, body: Any, expected: Any) -> None:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert problem(await client.post("/pay", json=body, headers=headers)) == expected
    assert await effects_of(sql_room) == 0


@pytest.mark.req("C-23")
async def test_other_content_and_long_bodies_are_refused(sql_room: Postroom) -> None:
    async with client_of(fastapi_app(sql_room, max_body_size=30)) as client:
        await client.post("/pay", json={"cents": 5})
        assert problem(await client.post("/pay", json={"cents": 6})) == (422, "reused")
        assert problem(await client.post("/pay?note=x", json={"cents": 5})) == (422, "reused")
        assert problem(await client.post("/pay", json={"cents": 5, "note": "x" * 30})) == (413, "too-large")

        async def chunks() -> AsyncIterator[bytes]:
            yield b'{"cents": 5'
            yield b" " * 30 + b"}"

        chunked = await client.post("/pay", content=chunks(), headers={"Content-Type": "application/json"})
        assert problem(chunked) == (413, "too-large")
    assert await effects_of(sql_room) == 1


@pytest.mark.req("CEB-008")
async def test_fifty_requests_at_the_same_time(app: FastAPI, client: httpx2.AsyncClient, sql_room: Postroom) -> None:
    busy = asyncio.Semaphore(0)

    async def inside() -> None:
        for _ in range(49):
            await busy.acquire()

    async def pay() -> int:
        response = await client.post("/pay", json={"cents": 5})
        if response.status_code == 409:
            assert (problem(response), response.headers["retry-after"]) == ((409, "in-progress"), "1")
            busy.release()
        return response.status_code

    app.state.inside = inside
    statuses = await asyncio.gather(*(pay() for _ in range(50)))
    assert sorted(statuses) == [201] + [409] * 49
    assert await effects_of(sql_room) == 1


async def test_fifty_payments_at_the_same_time(client: httpx2.AsyncClient, sql_room: Postroom) -> None:
    """More than a pool has connections: each waits for its transaction."""
    keys = [{"Idempotency-Key": f"k-{number}"} for number in range(50)]
    replies = await asyncio.gather(*(client.post("/pay", json={"cents": 5}, headers=key) for key in keys))
    assert {reply.status_code for reply in replies} == {201}
    assert await effects_of(sql_room) == 50


@pytest.mark.req("C-26")
async def test_a_stale_request_rolls_back(
    app: FastAPI, client: httpx2.AsyncClient, sql_room: Postroom, clock: FrozenClock
) -> None:
    async def paused() -> None:
        app.state.inside = nothing
        clock.advance(timedelta(minutes=5))
        assert (await client.post("/pay", json={"cents": 5})).status_code == 201

    if "sqlite" in repr(sql_room):
        pytest.skip("a transaction of SQLite excludes other writers, so no other request can take the lease")
    app.state.inside = paused
    assert problem(await client.post("/pay", json={"cents": 5})) == (409, "not-recorded")
    assert await effects_of(sql_room) == 1
    assert (await client.post("/pay", json={"cents": 5})).headers["idempotency-replayed"] == "true"


@pytest.mark.req("CEB-026")
async def test_a_cancelled_request_rolls_back_and_releases_the_key(
    app: FastAPI, client: httpx2.AsyncClient, sql_room: Postroom
) -> None:
    begun = asyncio.Event()

    async def paused() -> None:
        begun.set()
        await asyncio.Event().wait()

    app.state.after_effect = paused
    task = asyncio.create_task(client.post("/pay", json={"cents": 5}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await effects_of(sql_room), await state(sql_room)) == (0, State.WAITING)
    app.state.after_effect = nothing
    assert (await client.post("/pay", json={"cents": 5})).status_code == 201


async def broken_at(monkeypatch: pytest.MonkeyPatch, room: Postroom, verb: str, error: Exception) -> Callable[[], None]:
    store: Any = room.guard("routes", mode="transactional")._store

    async def fail(*args: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setitem(vars(store), verb, fail)
    return monkeypatch.undo


@pytest.mark.req("CEB-001")
@pytest.mark.parametrize("verb", ["begin", "settle"])
async def test_a_store_that_fails(
    client: httpx2.AsyncClient, sql_room: Postroom, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    repair = await broken_at(monkeypatch, sql_room, verb, CommitUnknown())
    response = await client.post("/pay", json={"cents": 5})
    assert (problem(response), response.headers["retry-after"]) == ((503, "unavailable"), "1")
    repair()
    assert await effects_of(sql_room) == 0
    clock.advance(timedelta(minutes=5))
    assert (await client.post("/pay", json={"cents": 5})).status_code == 201
    assert await effects_of(sql_room) == 1


async def test_an_error_of_the_commit_that_is_no_outage_is_raised(
    client: httpx2.AsyncClient, sql_room: Postroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broken_at(monkeypatch, sql_room, "settle", ZeroDivisionError())
    assert (await client.post("/pay", json={"cents": 5})).status_code == 500


async def test_a_response_that_is_too_large_is_sent_and_not_run_again(sql_room: Postroom) -> None:
    calls: list[int] = []

    @idempotent(sql_room.guard("small", mode="transactional", max_result_size=50), principal=user_of)
    async def large(request: Request, tx: Any) -> Response:
        calls.append(1)
        return Response(b"x" * 100)

    async with client_of(Starlette(routes=[Route("/", large, methods=["POST"])])) as client:
        assert (await client.post("/")).content == b"x" * 100
        assert problem(await client.post("/")) == (409, "replay-unavailable")
    assert calls == [1]


# -- frameworks --------------------------------------------------------------------------------------------------------


@pytest.mark.req("C-55")
def test_fastapi_does_not_see_the_transaction(app: FastAPI) -> None:
    operation = app.openapi()["paths"]["/pay"]["post"]
    assert [each["name"] for each in operation["parameters"]] == ["note"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Payment")
    assert operation["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith("/Receipt")


async def test_starlette_functions_and_classes(sql_room: Postroom) -> None:
    once = idempotent(sql_room.guard("starlette", mode="transactional"), principal=ANONYMOUS)
    effects = sql_room.outbox("effects")

    @once
    async def pay(request, tx):  # type: ignore[no-untyped-def]
        await effects.enqueue("paid", (await request.body()).decode(), tx=tx)
        return JSONResponse(await request.json())

    class Pay(HTTPEndpoint):
        @once
        async def post(self, request: Request, tx: Any) -> Response:
            await effects.enqueue("paid", "", tx=tx)
            return Response(b"class")

    @once
    async def wrong(request: Request, tx: Any) -> Any:
        return {"no": "response"}

    routes = [Route("/function", pay, methods=["POST"]), Route("/class", Pay), Route("/wrong", wrong, methods=["POST"])]
    async with client_of(Starlette(routes=routes)) as client:
        for path, body in (("/function", b"[7]"), ("/class", b"class")):
            assert [(await client.post(path, content=b"[7]")).content for _ in range(2)] == [body, body]
        assert (await client.post("/wrong")).status_code == 500
    assert await effects_of(sql_room) == 2


async def test_a_router_with_a_prefix(sql_room: Postroom) -> None:
    router, app = APIRouter(prefix="/v1"), FastAPI()

    @router.post("/pay/{number}", response_model=dict[str, int])
    @idempotent(sql_room.guard("router", mode="transactional"), principal=user_of)
    async def pay(number: int, tx: Any) -> Any:
        return {"number": str(number)}

    app.include_router(router, prefix="/api")
    async with client_of(app) as client:
        for number in (1, 2, 1):
            assert (await client.post(f"/api/v1/pay/{number}")).json() == {"number": number}


@pytest.mark.req("C-55")
@pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession], ids=["connection", "session"])
async def test_sqlalchemy_on_postgresql(kind: Any) -> None:
    engine = create_async_engine(with_driver(clean_database(), "asyncpg"))
    room = Postroom("postgresql://", pool=engine)
    app = FastAPI()
    seen: list[type] = []

    async def pay(request: Request, tx: Any) -> dict[str, int]:
        seen.append(type(tx))
        await room.outbox("effects").enqueue("paid", 1, tx=tx)
        return {"one": (await tx.execute(text("SELECT 1"))).scalar_one()}

    pay.__annotations__["tx"] = kind
    app.post("/pay")(idempotent(room.guard("orm", mode="transactional"), principal=user_of)(pay))
    async with client_of(app) as client:
        assert [(await client.post("/pay")).json() for _ in range(2)] == [{"one": 1}] * 2
    assert (seen, await effects_of(room)) == ([kind], 1)
    await room.close()
    await engine.dispose()


async def test_bad_arguments_are_refused_at_once() -> None:
    room = Postroom("sqlite:///unused.db")
    guard = room.guard("routes", mode="transactional")

    async def no_tx(request: Request) -> None: ...

    def plain(request: Request, tx: Any) -> None: ...

    async def other_tx(request: Request, tx: AsyncSession) -> None: ...

    for kind, function, match in (
        (ArgumentTypeError, no_tx, "must take tx"),
        (ArgumentTypeError, plain, "async function"),
        (ArgumentTypeError, other_tx, "AsyncSession"),
    ):
        with pytest.raises(kind, match=match):
            idempotent(guard, principal=user_of)(function)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match='mode="transactional"'):
        idempotent(room.guard("lease"), principal=user_of)
    with pytest.raises(ArgumentTypeError, match=r"postroom\.sync"):
        idempotent(sync.Postroom("sqlite:///unused.db").guard("x", mode="transactional"), principal=user_of)  # type: ignore[arg-type]
    with pytest.raises(FeatureMissing):
        Postroom("memory://").guard("routes", mode="transactional")
    once = idempotent(guard, principal=user_of)(without_a_request)
    assert inspect.iscoroutinefunction(once)
    assert "tx" not in inspect.signature(once).parameters
    with pytest.raises(ArgumentTypeError, match="without its request"):
        await once()


WITHOUT_STARLETTE = """
import sys
sys.modules["starlette"] = None
from postroom import ExtraMissing, Postroom
from postroom.web import ANONYMOUS, IdempotencyMiddleware, idempotent
room = Postroom("sqlite:///unused.db")
IdempotencyMiddleware(None, guard=room.guard("http"), principal=ANONYMOUS)
try:
    idempotent(room.guard("routes", mode="transactional"), principal=ANONYMOUS)
except ExtraMissing as error:
    print(error)
"""


def test_only_the_decorator_needs_starlette(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_STARLETTE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "idempotent needs Starlette: pip install 'postroom[web]'\n"


async def without_a_request(tx: Any) -> None: ...
