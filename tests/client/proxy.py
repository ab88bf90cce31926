"""A proxy between a client and a service that loses responses, and a server that sends what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


async def read_http(reader: asyncio.StreamReader) -> bytes:
    """Returns one request or response with its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))


class Proxy:
    """Passes requests on. While `to_lose` is above 0, it closes the connection in place of the response."""

    def __init__(self, service: str) -> None:
        self._service = urlsplit(service)
        self.to_lose = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_http(reader)
            self.requests.append(request)
            reply = await self._pass_on(request)
            if self.to_lose:
                self.to_lose -= 1
                return
            writer.write(reply)
            await writer.drain()

    async def _pass_on(self, request: bytes) -> bytes:
        """Returns the response: when it is here, the service has stored what it was sent."""
        reader, writer = await asyncio.open_connection(self._service.hostname, self._service.port)
        try:
            writer.write(request)
            return await read_http(reader)
        finally:
            writer.close()
            await writer.wait_closed()


class Canned:
    """Sends these responses, one for each request; then the last one again."""

    def __init__(self, *responses: bytes) -> None:
        self._responses = list(responses)
        self.requests: list[bytes] = []
        self.url = ""

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.requests.append(await read_http(reader))
            writer.write(self._responses.pop(0) if len(self._responses) > 1 else self._responses[0])
            await writer.drain()


def response(status: int, body: bytes = b"{}", *, headers: str = "", media_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@asynccontextmanager
async def listening(server: Proxy | Canned) -> AsyncIterator[str]:
    """Runs a server on a free port. Yields its URL."""
    writers: set[asyncio.StreamWriter] = set()
    ended = asyncio.Condition()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            await server.respond(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            writer.transport.abort()
            async with ended:
                writers.discard(writer)
                ended.notify_all()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
    try:
        yield server.url
    finally:
        running.close()
        for writer in writers:
            writer.transport.abort()
        async with ended:
            await ended.wait_for(lambda: not writers)
