"""A bare Starlette endpoint with one upsert: what `benchmarks.service` compares the service with.

    python -m benchmarks.bare_service URL PORT

Runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from postroom.service.server import bind

Upsert = Callable[[str], Awaitable[object]]


async def upsert_on(url: str) -> Upsert:
    """Returns one upsert and one commit per call."""
    if url.startswith("postgresql"):
        import asyncpg

        pool = await asyncpg.create_pool(url, max_size=10)
        await pool.execute("CREATE TABLE IF NOT EXISTS bare (key text PRIMARY KEY, at timestamptz DEFAULT now())")

        async def upsert(key: str) -> object:
            return await pool.execute("INSERT INTO bare (key) VALUES ($1) ON CONFLICT DO NOTHING", key)

        return upsert
    import aiosqlite

    connection = await aiosqlite.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    await connection.execute("PRAGMA journal_mode = WAL")
    await connection.execute("PRAGMA busy_timeout = 30000")
    await connection.execute("CREATE TABLE IF NOT EXISTS bare (key TEXT PRIMARY KEY, at TEXT)")

    async def insert(key: str) -> object:
        return await connection.execute("INSERT INTO bare (key) VALUES (?) ON CONFLICT DO NOTHING", [key])

    return insert


async def main(url: str, port: int) -> None:
    upsert = await upsert_on(url)

    async def endpoint(request: Request) -> JSONResponse:
        await upsert(json.loads(await request.body())["key"])
        return JSONResponse({"status": "Acquired"})

    app = Starlette(routes=[Route("/v1/inbox/try-begin", endpoint, methods=["POST"])])
    listening = bind("127.0.0.1", port, shared=False)
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None, server_header=False, ws="none")
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
