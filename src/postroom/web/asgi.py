"""The types of ASGI, and its messages that the middleware sends itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


def values_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Returns the values of a header, whose name is in lower case."""
    return [bytes(value) for each, value in headers if each.lower() == name]


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Returns the Content-Length; None if there is none, or one that is not a number."""
    found = values_of(headers, b"content-length")
    return int(found[0]) if len(found) == 1 and found[0].isdigit() and len(found[0]) < 20 else None


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Sends a response in two messages."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
