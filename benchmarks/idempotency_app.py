"""The two apps that `benchmarks.idempotency` compares: python -m benchmarks.idempotency_app URL PORT middleware|hand.

Runs until SIGTERM. Both have one route that writes nothing itself. `hand` does what people write: an
`INSERT … ON CONFLICT DO NOTHING` before the handler, and an UPDATE that stores the response after it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom import Postroom
from postroom.service.server import bind
from postroom.web import ANONYMOUS, IdempotencyMiddleware


async def pay(request: Request) -> Response:
    await request.body()
    return JSONResponse({"paid": True}, 201)


class SqliteKeys:
    """Keys in a table of SQLite."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begin(self, key: str) -> bool:
        insert = "INSERT INTO keys (key) VALUES (?) ON CONFLICT DO NOTHING"
        return bool((await self._connection.execute(insert, [key])).rowcount)

    async def get(self, key: str) -> bytes:
        [[body]] = await self._connection.execute_fetchall("SELECT body FROM keys WHERE key = ?", [key])
        return bytes(body)

    async def end(self, key: str, body: bytes) -> None:
        await self._connection.execute("UPDATE keys SET body = ? WHERE key = ?", [body, key])


class PostgresKeys:
    """Keys in a table of PostgreSQL."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def begin(self, key: str) -> bool:
        insert = "INSERT INTO keys (key) VALUES ($1) ON CONFLICT DO NOTHING"
        return str(await self._pool.execute(insert, key)).endswith("1")

    async def get(self, key: str) -> bytes:
        return bytes(await self._pool.fetchval("SELECT body FROM keys WHERE key = $1", key))

    async def end(self, key: str, body: bytes) -> None:
        await self._pool.execute("UPDATE keys SET body = $1 WHERE key = $2", body, key)


async def open_keys(url: str) -> SqliteKeys | PostgresKeys:
    if url.startswith("postgresql"):
        import asyncpg

        pool = await asyncpg.create_pool(url, max_size=10)
        await pool.execute("CREATE TABLE IF NOT EXISTS keys (key text PRIMARY KEY, body bytea)")
        return PostgresKeys(pool)
    import aiosqlite

    connection = await aiosqlite.connect(url.removeprefix("sqlite:///") + ".hand", isolation_level=None)
    await connection.execute("PRAGMA journal_mode = WAL")
    await connection.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, body BLOB)")
    return SqliteKeys(connection)


async def make_app(url: str, kind: str) -> Starlette:
    if kind == "middleware":
        room = Postroom(url, deploy_schema=True)
        app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, guard=room.guard("bench"), principal=ANONYMOUS)
        return app
    keys = await open_keys(url)

    async def pay_once(request: Request) -> Response:
        key = request.headers["idempotency-key"]
        if not await keys.begin(key):
            return Response(await keys.get(key), 201, media_type="application/json")
        response = await pay(request)
        await keys.end(key, bytes(response.body))
        return response

    return Starlette(routes=[Route("/pay", pay_once, methods=["POST"])])


async def main(url: str, port: int, kind: str) -> None:
    app = await make_app(url, kind)
    listening = bind("127.0.0.1", port, shared=False)
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None, ws="none")
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
