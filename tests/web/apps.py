"""Apps with an effect that can be counted: one message in an outbox for each payment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import BackgroundTasks, Depends, FastAPI, Form, HTTPException, Request, Response
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from postroom import Postroom
from postroom.web import IdempotencyMiddleware, idempotent


class Payment(BaseModel):
    cents: int


class Receipt(BaseModel):
    number: int
    cents: int


class Internal(Receipt):
    secret: str = "internal"


def user_of(request: Any) -> str | None:
    """The principal, of a scope or of a request."""
    found = [value.decode() for name, value in request["headers"] if name == b"x-user"]
    return found[0] if found else None


async def effects_of(room: Postroom) -> int:
    return len(await room.outbox("effects").find(limit=1000))


def plain_app(room: Postroom, **options: Any) -> Starlette:
    """Starlette with the middleware: the effect commits before the outcome."""
    effects = room.outbox("effects")

    async def pay(request: Request) -> Response:
        await request.app.state.inside()
        await effects.enqueue("paid", (await request.body()).decode())
        await request.app.state.after_effect()
        return JSONResponse({"number": await effects_of(room)}, 201)

    async def stream(request: Request) -> Response:
        body = await request.body()
        await effects.enqueue("streamed", body.decode())

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield body

        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"]), Route("/stream", stream, methods=["POST"])])
    app.state.inside = app.state.after_effect = nothing
    app.add_middleware(IdempotencyMiddleware, guard=room.guard("http"), principal=user_of, **options)
    return app


async def nothing() -> None: ...


async def limits(response: Response) -> str:
    response.headers["x-limit"] = "9"
    return "limits"


def fastapi_app(room: Postroom, **options: Any) -> FastAPI:
    """FastAPI with decorated routes: the effect and the outcome commit together."""
    guard = room.guard("routes", mode="transactional")
    effects = room.outbox("effects")
    app = FastAPI()
    app.state.inside = app.state.after_effect = nothing
    app.state.background = []
    once = idempotent(guard, principal=user_of, **options)

    @app.post("/pay", status_code=201)
    @once
    async def pay(
        payment: Payment, tx: Any, request: Request, limit: Annotated[str, Depends(limits)], note: str = "none"
    ) -> Receipt:
        await request.app.state.inside()
        await effects.enqueue("paid", payment.cents, tx=tx)
        await request.app.state.after_effect()
        if payment.cents == 404:
            raise HTTPException(404, "no such account")
        if payment.cents == 13:
            raise RuntimeError("broken")
        return Internal(number=payment.cents, cents=payment.cents)

    @app.post("/raw/{status}")
    @once
    async def raw(status: int, tx: Any, background: BackgroundTasks) -> Response:
        await effects.enqueue("raw", status, tx=tx)
        background.add_task(app.state.background.append, status)
        return JSONResponse({"status": status}, status, {"set-cookie": "a=1", "x-kept": "yes"})

    @app.post("/stream")
    @once
    async def stream(request: Request, tx: Any) -> StreamingResponse:
        await effects.enqueue("streamed", "", tx=tx)

        async def parts() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        return StreamingResponse(parts())

    @app.post("/form")
    @once
    async def form(name: Annotated[str, Form()], tx: Any) -> dict[str, str]:
        await effects.enqueue("form", name, tx=tx)
        return {"name": name}

    @app.post("/empty", status_code=204)
    @once
    async def empty(tx: Any, response: Response) -> None:
        response.headers["x-empty"] = "1"
        await effects.enqueue("empty", "", tx=tx)

    @app.post("/wrong", response_model=Receipt)
    @once
    async def wrong(tx: Any) -> Any:
        await effects.enqueue("wrong", "", tx=tx)
        return {"number": "no number"}

    return app
