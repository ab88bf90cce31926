"""The cost of a guarded call, next to a hand-written `INSERT … ON CONFLICT DO NOTHING` in the same run.

    python -m benchmarks.guard [--calls 500] [--rounds 5] [--concurrency 50] [URL ...]

Each round runs both, one after the other, so that a busy machine slows both. Prints the median of the ratios. The
hand-written guard only marks before the handler: one statement and one commit. A guarded call writes twice, when it
begins and when it ends; a duplicate writes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from postroom import Postroom


async def _together(call: Callable[[str], Awaitable[Any]], keys: list[str], concurrency: int) -> float:
    waiting = iter(keys)

    async def work() -> None:
        for key in waiting:
            await call(key)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return (time.perf_counter() - began) / len(keys)


async def hand_written(url: str) -> tuple[Callable[[str], Awaitable[Any]], Callable[[], Awaitable[Any]]]:
    """Returns one upsert per call, as people write it, and what closes its connections."""
    if url.startswith("postgresql"):
        import asyncpg

        pool = await asyncpg.create_pool(url.replace("+asyncpg", ""), max_size=10)
        await pool.execute(
            "CREATE TABLE IF NOT EXISTS hand_written (key text PRIMARY KEY, at timestamptz DEFAULT now())"
        )

        async def upsert(key: str) -> None:
            await pool.execute("INSERT INTO hand_written (key) VALUES ($1) ON CONFLICT DO NOTHING", key)

        return upsert, pool.close
    if url.startswith("redis"):
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(url)

        async def set_nx(key: str) -> None:
            await client.set(f"hand:{key}", 1, nx=True, ex=600)

        return set_nx, client.aclose
    import aiosqlite

    connection = await aiosqlite.connect(url.removeprefix("sqlite:///") + ".hand", isolation_level=None)
    await connection.execute("PRAGMA journal_mode = WAL")
    await connection.execute("CREATE TABLE IF NOT EXISTS hand_written (key TEXT PRIMARY KEY, at TEXT)")

    async def insert(key: str) -> None:
        await connection.execute("INSERT INTO hand_written (key) VALUES (?) ON CONFLICT DO NOTHING", [key])

    return insert, connection.close


async def measure(url: str, calls: int, rounds: int, concurrency: int) -> None:
    room = Postroom(url, deploy_schema=True)
    upsert, close = await hand_written(url)
    guard = room.guard(f"bench-{secrets.token_hex(4)}")

    @guard.once("key")
    async def handle(key: str) -> None: ...

    await handle("warm")
    await upsert("warm")
    new, again, plain = [], [], []
    for _ in range(rounds):
        keys = [secrets.token_hex(8) for _ in range(calls)]
        plain.append(await _together(upsert, keys, concurrency))
        new.append(await _together(handle, keys, concurrency))
        again.append(await _together(handle, keys, concurrency))
    name = url.split(":", 1)[0]
    ratios = [statistics.median(a / b for a, b in zip(times, plain, strict=True)) for times in (new, again)]
    print(
        f"{name:<22} concurrency {concurrency:>3}: upsert {statistics.median(plain) * 1e6:7.0f} us, "
        f"guarded {statistics.median(new) * 1e6:7.0f} us (x{ratios[0]:.2f}), "
        f"duplicate {statistics.median(again) * 1e6:7.0f} us (x{ratios[1]:.2f})"
    )
    await guard.purge("done", older_than=timedelta())
    await close()
    await room.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for url in given.urls or [f"sqlite:///{folder}/guard.db"]:
            for concurrency in (1, given.concurrency):
                asyncio.run(measure(url, given.calls, given.rounds, concurrency))


if __name__ == "__main__":
    main()
