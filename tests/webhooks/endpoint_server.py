"""An HTTP endpoint on loopback: it records requests, and responds as it is told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """A request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class EndpointServer:
    """A running server. `responses` are used in order, the last one again and again."""

    port: int
    responses: list[str] = field(default_factory=lambda: ["204 No Content\r\n"])
    requests: list[Request] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: requests are read, and not responded to."""
    connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = field(default_factory=dict)
    running: int = 0
    most_running: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections[task] = writer
        try:
            while line := (await reader.readline()).decode():
                headers: dict[str, str] = {}
                while (header := (await reader.readline()).decode().rstrip("\r\n")) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append(Request(line.strip(), headers, body))
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                self.arrived.set()
                await self.gate.wait()
                self.running -= 1
                response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
                length = "" if response.startswith("204") else "Content-Length: 0\r\n"
                writer.write(f"HTTP/1.1 {response}{length}\r\n".encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            del self.connections[task]


@asynccontextmanager
async def endpoint_server(*responses: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[EndpointServer]:
    """Starts a server. A response is its status, such as `"503 Busy\\r\\nRetry-After: 7\\r\\n"`."""
    made = EndpointServer(0)
    made.gate.set()
    if responses:
        made.responses = [response if response.endswith("\r\n") else f"{response}\r\n" for response in responses]
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.gate.set()
        server.close()
        for writer in made.connections.values():
            writer.close()
        await asyncio.gather(*made.connections, return_exceptions=True)
