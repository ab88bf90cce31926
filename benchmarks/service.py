"""Requests per second of the service, next to a bare Starlette endpoint with one upsert on the same database.

    python -m benchmarks.service [--connections 200] [--requests 4000] [--rounds 5] [URL]

Both run as processes with the same server settings, and log no requests. Each round calls both, one after the other, so
that a busy machine slows both. Prints the median of the rounds, and the median of their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = secrets.token_hex(16)
EXPECTED = (b"200", b"Acquired")
"""The status, and a part of the body, of each response."""


class Measured(NamedTuple):
    """One round of one server."""

    per_second: float
    p50: float
    p99: float


@contextlib.contextmanager
def server(port: int, *command: str) -> Iterator[None]:
    """Starts a server, waits until it listens on the port, and ends it."""
    with subprocess.Popen([sys.executable, *command]) as process:
        try:
            while not _listens(port):
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with {process.returncode}")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _requests(count: int) -> list[bytes]:
    """Returns requests with new keys."""
    return [_request(secrets.token_hex(8)) for _ in range(count)]


def _request(key: str) -> bytes:
    body = json.dumps({"key": key}).encode()
    head = f"POST /v1/inbox/try-begin HTTP/1.1\r\nHost: service\r\nAuthorization: Bearer {TOKEN}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def call(
    port: int, connections: int, requests: list[bytes], expected: tuple[bytes, bytes] = EXPECTED
) -> Measured:
    """Sends requests over connections that stay open."""
    left = iter(requests)
    seconds: list[float] = []
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for raw in left:
            began = time.perf_counter()
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if not head.startswith(b"HTTP/1.1 " + expected[0]) or length is None:
                raise RuntimeError(head.decode())
            body = await reader.readexactly(int(length[1]))
            seconds.append(time.perf_counter() - began)
            if expected[1] not in body:
                raise RuntimeError(body.decode())
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(work(*each) for each in streams))
    total = time.perf_counter() - began
    ordered = sorted(seconds)
    return Measured(len(requests) / total, ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)])


async def measure(url: str, connections: int, requests: int, rounds: int) -> None:
    ours, bare = free_port(), free_port()
    flags = ("--url", url, "--port", str(ours), "--tokens", f"bench={TOKEN}", "--log-level", "warning")
    results: dict[int, list[Measured]] = {ours: [], bare: []}
    with (
        server(ours, "-m", "postroom", "serve", *flags),
        server(bare, "-m", "benchmarks.bare_service", url, str(bare)),
    ):
        for port in results:
            await call(port, connections, _requests(connections))  # warm
        for _ in range(rounds):
            for port, measured in results.items():
                measured.append(await call(port, connections, _requests(requests)))
    for name, port in (("service", ours), ("bare endpoint", bare)):
        median = Measured(*(statistics.median(column) for column in zip(*results[port], strict=True)))
        print(
            f"{name:<14} {median.per_second:7.0f} requests/s, p50 {median.p50 * 1e3:6.1f} ms, "
            f"p99 {median.p99 * 1e3:6.1f} ms"
        )
    pairs = zip(results[ours], results[bare], strict=True)
    ratios = [mine.per_second / theirs.per_second for mine, theirs in pairs]
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {connections} connections")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("url", nargs="?")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/service.db"
        asyncio.run(measure(url, given.connections, given.requests, given.rounds))


if __name__ == "__main__":
    main()
