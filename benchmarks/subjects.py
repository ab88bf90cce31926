"""The measured loops behind one protocol: Postroom through its sync and its async API, and the raw loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import postroom
import postroom.sync
from benchmarks.raw_sqlite import RawLoop
from benchmarks.workload import BOX, SOURCE, TOPIC, Item, chunks
from postroom import NewMessage, OwnerToken

LEASE_SECONDS = 30


class Subject(Protocol):
    """A loop on one file."""

    def enqueue_each(self, items: list[Item]) -> None:
        """One transaction per message."""

    def enqueue_bulk(self, items: list[Item], size: int) -> None:
        """One transaction per `size` messages."""

    def drain(self, count: int, batch: int) -> None:
        """Claim and ack, batch by batch."""

    def close(self) -> None: ...


class Raw:
    """The limit."""

    def __init__(self, path: Path) -> None:
        self._loop = RawLoop(path)

    def enqueue_each(self, items: list[Item]) -> None:
        for item in items:
            self._loop.enqueue([item])

    def enqueue_bulk(self, items: list[Item], size: int) -> None:
        for chunk in chunks(items, size):
            self._loop.enqueue(chunk)

    def drain(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            rows = self._loop.claim(batch)
            expect_full(len(rows), batch)
            self._loop.ack(rows)

    def close(self) -> None:
        self._loop.close()


class SyncFace:
    """`postroom.sync.Postroom`, on sqlite3."""

    def __init__(self, path: Path, *, groups: int = 0) -> None:
        self._room = postroom.sync.Postroom(f"sqlite:///{path}")
        self._inbox = self._room.inbox(BOX, order="fifo" if groups else "none")
        self._groups = groups
        self._owner = OwnerToken.new()

    def enqueue_each(self, items: list[Item]) -> None:
        for item in items:
            self._inbox.enqueue(TOPIC, item.payload, source=SOURCE, message_id=item.message_id)

    def enqueue_bulk(self, items: list[Item], size: int) -> None:
        for chunk in chunks(items, size):
            self._inbox.enqueue_many(new_messages(chunk, self._groups))

    def drain(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            messages = self._inbox.claim(self._owner, LEASE_SECONDS, batch)
            expect_full(len(messages), batch)
            expect_full(sum(self._inbox.ack(self._owner, messages)), batch)

    def close(self) -> None:
        self._room.close()


class AsyncFace:
    """`postroom.Postroom`, on aiosqlite. It has a separate event loop, so that rounds can alternate with sync code."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        self._room = self._runner.run(self._open(path))
        self._inbox = self._room.inbox(BOX)
        self._owner = OwnerToken.new()

    async def _open(self, path: Path) -> postroom.Postroom:
        return postroom.Postroom(f"sqlite:///{path}")

    def enqueue_each(self, items: list[Item]) -> None:
        self._runner.run(self._enqueue_each(items))

    def enqueue_concurrently(self, items: list[Item], tasks: int) -> None:
        """Many tasks, each of which enqueues its share one by one."""
        self._runner.run(self._enqueue_concurrently(items, tasks))

    def enqueue_bulk(self, items: list[Item], size: int) -> None:
        self._runner.run(self._enqueue_bulk(items, size))

    def drain(self, count: int, batch: int) -> None:
        self._runner.run(self._drain(count, batch))

    async def _enqueue_each(self, items: list[Item]) -> None:
        for item in items:
            await self._inbox.enqueue(TOPIC, item.payload, source=SOURCE, message_id=item.message_id)

    async def _enqueue_concurrently(self, items: list[Item], tasks: int) -> None:
        async with asyncio.TaskGroup() as group:
            for share in chunks(items, -(-len(items) // tasks)):
                group.create_task(self._enqueue_each(share))

    async def _enqueue_bulk(self, items: list[Item], size: int) -> None:
        for chunk in chunks(items, size):
            await self._inbox.enqueue_many(new_messages(chunk))

    async def _drain(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            messages = await self._inbox.claim(self._owner, LEASE_SECONDS, batch)
            expect_full(len(messages), batch)
            expect_full(sum(await self._inbox.ack(self._owner, messages)), batch)

    def close(self) -> None:
        self._runner.run(self._room.close())
        self._runner.close()


def new_messages(items: list[Item], groups: int = 0) -> list[NewMessage]:
    """With groups, adjacent messages are in different ones."""
    return [
        NewMessage(
            TOPIC,
            item.payload,
            source=SOURCE,
            message_id=item.message_id,
            group=f"group-{int(item.message_id[-12:]) % groups}" if groups else None,
        )
        for item in items
    ]


def expect_full(got: int, batch: int) -> None:
    """A benchmark without messages is fast and shows nothing."""
    if got != batch:
        raise AssertionError(f"got {got} messages instead of {batch}")
