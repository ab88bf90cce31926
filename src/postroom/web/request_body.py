"""The body of a request: read whole before the key is taken, then handed to the app."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from postroom.web.asgi import Headers, Message, Receive, length_of
from postroom.web.problems import too_large, too_slow


class Disconnected(Exception):
    """The client has gone before its request was complete."""


async def read_body(receive: Receive, headers: Headers, *, most: int, within: timedelta) -> bytes:
    """Returns the body. Raises Refused for one that is too long or too slow, Disconnected if the client has gone."""
    if (length_of(headers) or 0) > most:
        raise too_large(most)
    try:
        async with asyncio.timeout(within.total_seconds()):
            return await _read(receive, most)
    except TimeoutError:
        raise too_slow(within.total_seconds()) from None


async def _read(receive: Receive, most: int) -> bytes:
    """Counts while it reads: a chunked body has no length."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise too_large(most)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that returns the body once, and then what the server returns.

    A made-up disconnect would end a StreamingResponse before its first byte: it listens for one while it sends.
    """
    is_read = False

    async def receive_body_first() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body_first
