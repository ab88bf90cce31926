"""A process that receives webhooks with uvicorn. Arguments: the URL of the store. Prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from postroom import Postroom
from postroom.webhooks import GitHub, Receiver
from tests.webhooks.signing import SECRET


async def main() -> None:
    room = Postroom(sys.argv[1])
    await room.migrate()
    app = Starlette(routes=[Route("/hook", Receiver(room.inbox(), GitHub(SECRET)))])
    listening = socket.create_server(("127.0.0.1", 0))  # a request that comes before the server has started waits
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve([listening])


if __name__ == "__main__":
    asyncio.run(main())
