"""What a message costs by the size of its payload: time, and bytes in the store.

    python -m benchmarks.sizes

Runs on SQLite in a temporary folder, and on a private PostgreSQL and a private Redis with an append-only file, whose
settings are otherwise the defaults. Every payload is JSON: one string of random hexadecimal digits, which PostgreSQL
does not compress. The text it prints is Markdown, for docs/reference/payloads.md.
"""

from __future__ import annotations

import secrets
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg
import redis
from tools.servers.postgres import PostgresServer
from tools.servers.redis import RedisServer

from postroom import NewMessage, OwnerToken
from postroom.sync import Inbox, Postroom

SIZES = {"100 B": 100, "1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
HEADERS = (0, 5, 20, 100)
BATCHES = (1, 10, 100, 1_000, 10_000)
ROUNDS = 5
VOLUME = 20_000_000
"""Bytes of payload that are written in one round, at most 1,000 messages."""

Bytes = Callable[[], int]


class Database(NamedTuple):
    """A store, and how many bytes it occupies now."""

    name: str
    url: str
    occupied: Bytes


@contextmanager
def databases() -> Iterator[list[Database]]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as postgres, RedisServer(appendonly=True) as server:
        file = Path(folder) / "sizes.db"
        yield [
            Database("SQLite", f"sqlite:///{file}", lambda: _sqlite_bytes(file)),
            Database("PostgreSQL", postgres.url(), lambda: _postgres_bytes(postgres.url())),
            Database("Redis", server.url(), lambda: _redis_bytes(server.url())),
        ]


def _sqlite_bytes(file: Path) -> int:
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what is in the log is not in the file yet
    return file.stat().st_size


def _postgres_bytes(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        [(size,)] = connection.execute("SELECT pg_database_size(current_database())").fetchall()
    return int(size)


def _redis_bytes(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("memory")["used_memory"])


class Cost(NamedTuple):
    """Of one message."""

    enqueue: float
    handle: float
    stored: float


def cost_of(database: Database, size: int) -> Cost:
    """Milliseconds to enqueue and to claim and ack, in batches of 10; and bytes while it waits."""
    count = max(10, min(1_000, VOLUME // size))
    rounds = [_round(database, size, count) for _ in range(ROUNDS)]
    return Cost(*(median(values) for values in zip(*rounds, strict=True)))


def _round(database: Database, size: int, count: int) -> Cost:
    with Postroom(database.url) as room:
        room.migrate()
        box = room.inbox(f"sizes-{secrets.token_hex(4)}")
        before = database.occupied()
        payloads = [{"text": secrets.token_hex(size // 2)} for _ in range(count)]
        enqueue = _time(lambda: _enqueue(box, payloads))
        stored = database.occupied() - before
        handle = _time(lambda: _handle(box))
    return Cost(enqueue * 1000 / count, handle * 1000 / count, stored / count)


def _enqueue(box: Inbox, payloads: list[dict[str, str]]) -> None:
    for start in range(0, len(payloads), 10):
        part = payloads[start : start + 10]
        box.enqueue_many([_new(f"{start + number}", payload) for number, payload in enumerate(part)])


def _new(message_id: str, payload: dict[str, str], headers: int = 0) -> NewMessage:
    return NewMessage(
        "t", payload, source="sizes", message_id=message_id, headers={f"header-{n}": "x" * 20 for n in range(headers)}
    )


def _handle(box: Inbox) -> None:
    owner = OwnerToken.new()
    while claimed := box.claim(owner, batch_size=10):
        box.ack(owner, claimed)


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def batch_time(database: Database, batch: int) -> float:
    """Milliseconds that one `enqueue_many` takes."""
    with Postroom(database.url) as room:
        room.migrate()
        times = []
        for number in range(ROUNDS):
            box = room.inbox(f"batch-{secrets.token_hex(4)}")
            messages = [_new(f"{number}-{index}", {"text": "x" * 90}) for index in range(batch)]
            times.append(_time(lambda box=box, messages=messages: box.enqueue_many(messages)))  # type: ignore[misc]
    return median(times) * 1000


def headers_time(database: Database, headers: int) -> float:
    """Milliseconds to enqueue and to claim and ack one message with that many headers, in batches of 10."""
    with Postroom(database.url) as room:
        room.migrate()
        return median(_headers_round(room, headers) for _ in range(ROUNDS)) * 1000 / 500


def _headers_round(room: Postroom, headers: int) -> float:
    box = room.inbox(f"headers-{secrets.token_hex(4)}")

    def work() -> None:
        for start in range(0, 500, 10):
            box.enqueue_many([_new(f"{start + n}", {"text": "x" * 90}, headers) for n in range(10)])
        _handle(box)

    return _time(work)


def say(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    with databases() as stores:
        names = [database.name for database in stores]
        say("payload", *(f"{name}: {what}" for name in names for what in ("enqueue", "claim + ack", "bytes waiting")))
        say(*["---"] * (1 + 3 * len(stores)))
        for label, size in SIZES.items():
            costs = [cost_of(database, size) for database in stores]
            cells = [(f"{c.enqueue:.2f} ms", f"{c.handle:.2f} ms", f"{c.stored:,.0f}") for c in costs]
            say(label, *(cell for row in cells for cell in row))
        print()
        say("messages in one `enqueue_many`", *names)
        say(*["---"] * (1 + len(stores)))
        for batch in BATCHES:
            say(f"{batch:,}", *(f"{batch_time(database, batch):,.1f} ms" for database in stores))
        print()
        say("headers of 20 characters", *names)
        say(*["---"] * (1 + len(stores)))
        for headers in HEADERS:
            say(headers, *(f"{headers_time(database, headers):.2f} ms" for database in stores))
    print(f"\npython {sys.version.split()[0]}, {ROUNDS} rounds, median")


if __name__ == "__main__":
    main()
