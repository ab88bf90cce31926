"""Calls of an ASGI app, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from postroom.web.asgi import ASGIApp, Message


class Reply(NamedTuple):
    """A response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name), None)

    @property
    def is_replayed(self) -> bool:
        return self.header("idempotency-replayed") == "true"

    @property
    def problem(self) -> str:
        """The end of the type of problem details."""
        assert self.header("content-type") == "application/problem+json"
        details = json.loads(self.body)
        assert details["status"] == self.status
        return str(details["type"]).removeprefix("urn:postroom:idempotency:")


class Call:
    """One request. `sent` has the messages that the server got from the app."""

    def __init__(
        self,
        key: str | None = "k-1",
        *,
        user: str | None = "ann",
        method: str = "POST",
        path: str = "/pay",
        query: str = "",
        body: bytes | Iterable[bytes] = b"{}",
        headers: Iterable[tuple[str, str]] = (),
        extensions: dict[str, Any] | None = None,
    ) -> None:
        named = [] if key is None else [("idempotency-key", key)]
        given = [*named, ("content-type", "application/json"), *headers]
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given],
            "server": ("shop", 80),
            "client": None,
            "caller": user,
            "extensions": extensions or {},
        }
        chunks = [body] if isinstance(body, bytes) else list(body)
        self.received: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": index < len(chunks)}
            for index, chunk in enumerate(chunks, 1)
        ]
        self.gone = asyncio.Event()
        """When it is set, the client has gone."""
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self.received:
            return self.received.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self, app: ASGIApp) -> Reply:
        await app(self.scope, self.receive, self.send)
        return self.reply

    @property
    def reply(self) -> Reply:
        [start] = [each for each in self.sent if each["type"] == "http.response.start"]
        bodies = [each for each in self.sent if each["type"] == "http.response.body"]
        headers = [(name.decode().lower(), value.decode()) for name, value in start["headers"]]
        return Reply(start["status"], headers, b"".join(each.get("body", b"") for each in bodies))


async def call(app: ASGIApp, key: str | None = "k-1", **options: Any) -> Reply:
    return await Call(key, **options).run(app)


def user_of(scope: Any) -> str | None:
    """The principal, of a scope or of a request."""
    user: str | None = scope["caller"]
    return user
