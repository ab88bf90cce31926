"""Requests per second of an app with `IdempotencyMiddleware`, next to the same app with hand-written SQL.

    python -m benchmarks.idempotency [--quick] [--connections 50] [--requests 2000] [--rounds 5] [URL ...]

Both run as processes with the same server settings. Each round sends new keys and then the same keys again, to both,
one after the other, so that a busy machine slows both. Prints medians, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import tempfile

from benchmarks.service import Measured, call, free_port, server

KINDS = ("middleware", "hand")


def _request(key: str) -> bytes:
    head = f'POST /pay HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: "{key}"\r\nContent-Type: application/json\r\n'
    return f"{head}Content-Length: 2\r\n\r\n{{}}".encode()


async def measure(url: str, connections: int, requests: int, rounds: int) -> None:
    ports = {kind: free_port() for kind in KINDS}
    app = "benchmarks.idempotency_app"
    found: dict[tuple[str, str], list[Measured]] = {(name, kind): [] for name in ("new", "repeated") for kind in KINDS}
    with (
        server(ports["middleware"], "-m", app, url, str(ports["middleware"]), "middleware"),
        server(ports["hand"], "-m", app, url, str(ports["hand"]), "hand"),
    ):
        for turn in range(rounds + 1):
            for kind, port in ports.items():
                sent = [_request(secrets.token_hex(16)) for _ in range(requests)]
                for name in ("new", "repeated"):
                    measured = await call(port, connections, sent, (b"201", b"paid"))
                    if turn:  # the first round warms up
                        found[name, kind].append(measured)
    for name in ("new", "repeated"):
        ours, theirs = found[name, "middleware"], found[name, "hand"]
        ratios = [one.per_second / other.per_second for one, other in zip(ours, theirs, strict=True)]
        medians = [statistics.median(each.per_second for each in side) for side in (ours, theirs)]
        print(
            f"{url.split(':', 1)[0]:<12} {name:<9} middleware {medians[0]:6.0f} requests/s, by hand {medians[1]:6.0f}, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {connections} connections"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--quick", action="store_true", help="few requests and rounds")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    requests, rounds = (300, 2) if given.quick else (given.requests, given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        for url in given.urls or [f"sqlite:///{folder}/keys.db"]:
            asyncio.run(measure(url, given.connections, requests, rounds))


if __name__ == "__main__":
    main()
