"""Clients that call a service over TCP, each with its own connection, and record what was sent and what came back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tests.service.process import TOKEN


class Connection:
    """A connection that is kept open between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Connection:
        parts = urlsplit(address)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def post(self, path: str, body: Any, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
        return await self.send(request("POST", path, json.dumps(body).encode(), token))

    async def get(self, path: str, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
        return await self.send(request("GET", path, b"", token))

    async def send(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """Returns the status and the body. Raises IncompleteReadError or OSError if there is no whole response."""
        self._writer.write(raw)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        length = fields.get("content-length")
        text = await (self._reader.read() if length is None else self._reader.readexactly(int(length)))
        return int(head.split(" ")[1]), json.loads(text) if "json" in fields["content-type"] else {"text": text}

    async def close(self) -> None:
        self._writer.transport.abort()


def request(method: str, path: str, body: bytes, token: str = TOKEN) -> bytes:
    """Returns a request as bytes."""
    head = f"{method} {path} HTTP/1.1\r\nHost: service\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Load:
    """Callers that begin and settle one new key after the other, until their connection ends."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.known: dict[str, str] = {}
        """Key → the status in the last response that its caller got."""
        self.without_response: dict[str, str] = {}
        """Key → the verb that was sent and whose response did not arrive."""
        self._progress = asyncio.Condition()

    async def run(self, callers: int, responses: int, end: Callable[[], object]) -> None:
        """Runs callers; calls `end` after so many responses, and waits until all connections have ended."""
        tasks = [asyncio.create_task(self._call()) for _ in range(callers)]
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.known) >= responses)
        end()
        await asyncio.gather(*tasks)

    async def _call(self) -> None:
        connection = await Connection.open(self._address)
        key = verb = ""
        try:
            while True:
                key, verb = str(uuid4()), "try-begin"
                status, begun = await connection.post("/v1/inbox/try-begin", {"key": key})
                assert (status, begun["status"]) == (200, "Acquired"), begun
                await self._record(key, "Leased")
                verb = "mark-processed"
                body = {"key": key, "leaseId": begun["leaseId"], "result": {"of": key}}
                status, settled = await connection.post("/v1/inbox/mark-processed", body)
                assert (status, settled["status"]) == (200, "Processed"), settled
                await self._record(key, "Processed")
        except (OSError, asyncio.IncompleteReadError):
            self.without_response[key] = verb
        finally:
            await connection.close()

    async def _record(self, key: str, status: str) -> None:
        async with self._progress:
            self.known[key] = status
            self._progress.notify_all()
