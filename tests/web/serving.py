"""A real server for an app: `python -m tests.web.serving URL PREFIX APP KILL`.

It prints its port. KILL says where the process kills itself: `before` the outcome of a payment commits, or `after` that
and before the last byte of the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from postroom import Postroom
from postroom.web.asgi import ASGIApp, Message, Receive, Scope, Send
from tests.web.apps import fastapi_app, plain_app

APPS: dict[str, Any] = {"middleware": plain_app, "decorator": fastapi_app}


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """Runs uvicorn in this process. Yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def open_room(url: str, prefix: str, **options: Any) -> Postroom:
    given: dict[str, Any] = {"prefix": prefix, **options} if prefix else options
    return Postroom(url, **given)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_before_the_last_byte(app: ASGIApp) -> ASGIApp:
    async def killed(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_but_the_end(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                kill()
            await send(message)

        await app(scope, receive, send_but_the_end)

    return killed


async def main(url: str, prefix: str, kind: str, when: str) -> None:
    room = open_room(url, prefix)
    app = APPS[kind](room)

    async def after_effect() -> None:
        kill()

    if when == "before":
        app.state.after_effect = after_effect
    async with serving(killed_before_the_last_byte(app) if when == "after" else app) as port:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
