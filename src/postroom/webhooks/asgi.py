"""Bodies and responses of ASGI, without a framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_SECONDS = 30.0
CLOSE = {"Connection": "close"}
"""For a response after which the rest of the body is not read."""


class BodyTooLarge(Exception):
    """The body is longer than allowed."""


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class Disconnected(Exception):
    """The client has gone before the end of the body."""


async def read_body(
    headers: Iterable[tuple[bytes, bytes]], receive: Receive, most: int, *, seconds: float = BODY_SECONDS
) -> bytes:
    """Returns the body. Raises if it is longer than `most` bytes, takes too long, or does not end."""
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit() and int(value) > most:
            raise BodyTooLarge
    try:
        async with asyncio.timeout(seconds):
            return await _receive_all(receive, most)
    except TimeoutError:
        raise BodyTooSlow from None


async def _receive_all(receive: Receive, most: int) -> bytes:
    """Counts while it reads: a chunked body has no length."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise BodyTooLarge
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def respond(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Sends a response."""
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
