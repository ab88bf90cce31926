"""A small HTTP server for health checks. It returns a status and a fixed text, and no detail about the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from postroom.errors import ArgumentTypeError, ArgumentValueError

_log = logging.getLogger("postroom")

Check = Callable[[], Awaitable[bool]]

MAX_REQUEST_BYTES = 8 * 1024
"""Limit of the request line and the headers. No request has a body."""
REQUEST_SECONDS = 5.0
"""How long a client may take to send its request before its connection is closed."""
RESPONSE_SECONDS = 5.0
"""How long a client may take to read the response."""
MAX_CONNECTIONS = 64
"""Limit of concurrent connections. More are closed at once, so that they cannot use up file descriptors."""

_TEXTS = {HTTPStatus.OK: "ok", HTTPStatus.SERVICE_UNAVAILABLE: "unavailable"}


def parse_address(text: str) -> tuple[str, int]:
    """Returns host and port of HOST:PORT. An IPv6 address is in brackets: [::1]:8080."""
    if not isinstance(text, str):
        raise ArgumentTypeError(f"health must be a str, not {type(text).__name__}")
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if is_bracketed else host
    is_port = port.isascii() and port.isdecimal() and int(port) <= 65_535
    if not name or not is_port or (":" in name) is not is_bracketed:
        raise ArgumentValueError(
            f"health must be HOST:PORT, such as 127.0.0.1:8080, or 0.0.0.0:8080 for all interfaces; not {text!r}"
        )
    return name, int(port)


class HealthServer:
    """Serves each check under its path: 200 if it returns True, 503 if it returns False."""

    def __init__(self, address: tuple[str, int], checks: Mapping[str, Check]) -> None:
        self.address = address
        self._checks = checks
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        host, port = self.address
        self._server = await asyncio.start_server(self._accept, host, port, limit=MAX_REQUEST_BYTES)
        self.address = (host, self._server.sockets[0].getsockname()[1])  # port 0 is any free port
        shown = f"[{host}]" if ":" in host else host
        _log.info("health checks on %s", ", ".join(f"http://{shown}:{self.address[1]}{path}" for path in self._checks))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        client = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # TimeoutError is an OSError, as is a connection that the client has reset.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer.transport):
            status, has_body = await self._respond(reader)
            writer.write(_response(status, has_body=has_body))
            async with asyncio.timeout(RESPONSE_SECONDS):
                await writer.drain()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, bool]:
        """Returns the status, and whether the response has a body."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, True
        line = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return HTTPStatus.BAD_REQUEST, True
        method, target, _ = line
        if method not in {"GET", "HEAD"}:
            return HTTPStatus.METHOD_NOT_ALLOWED, True
        check = self._checks.get(target.partition("?")[0])
        if check is None:
            return HTTPStatus.NOT_FOUND, method == "GET"
        return (HTTPStatus.OK if await check() else HTTPStatus.SERVICE_UNAVAILABLE), method == "GET"


def _response(status: HTTPStatus, *, has_body: bool) -> bytes:
    body = f"{_TEXTS.get(status, status.phrase.lower())}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n"
        "\r\n"
    )
    return head.encode() + (body if has_body else b"")
