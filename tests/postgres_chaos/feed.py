"""A producer that does not give up: it counts the puts that returned, and repeats those that raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from postroom import Postroom
from tests.postgres_chaos.worker import Options, open_box
from tests.postgres_chaos.workers import WorkerProcesses, message

LINES = 6
PAUSE_SECONDS = 0.03
"""The pause between rounds. A high rate is not needed."""


class Feed:
    """Numbers for every line of some boxes, in order."""

    def __init__(self, url: str, *boxes: str) -> None:
        self._room = Postroom(url)
        self._boxes = [open_box(self._room, Options(url, ""), name) for name in boxes]
        self._stored = asyncio.Condition()
        self.length = 0
        """Numbers that are stored for certain."""
        self.errors: list[str] = []

    async def run(self) -> None:
        while True:
            for box in self._boxes:
                await self._put(box)
            async with self._stored:
                self.length += 1
                self._stored.notify_all()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _put(self, box: Any) -> None:
        while True:
            try:
                await box.enqueue_many([message(line, self.length) for line in range(LINES)])
            except Exception as error:  # noqa: BLE001 - whatever it is, it was not stored for certain
                self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.02)
            else:
                return

    async def more(self, count: int, seconds: float = 60) -> None:
        """Until so many more are stored."""
        goal = self.length + count
        async with asyncio.timeout(seconds), self._stored:
            await self._stored.wait_for(lambda: self.length >= goal)

    async def until_all_claim(self, *groups: WorkerProcesses, seconds: float = 60) -> None:
        """Waits until each group of processes has claimed another message."""
        before = [len(workers.claims("exact")) for workers in groups]
        async with asyncio.timeout(seconds):
            while any(len(workers.claims("exact")) == count for workers, count in zip(groups, before, strict=True)):
                await self.more(1)

    @property
    def everything(self) -> dict[str, list[int]]:
        return {str(line): list(range(self.length)) for line in range(LINES)}

    async def close(self) -> None:
        await self._room.close()


@asynccontextmanager
async def feeding(url: str, *boxes: str) -> AsyncIterator[Feed]:
    """Feeds until the block ends; whatever is half put then is put to the end."""
    feed = Feed(url, *boxes)
    running = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        running.cancel()
        await asyncio.wait([running])
        await feed.close()


async def finish_round(url: str, feed: Feed, *boxes: str) -> None:
    """The last number may have come to some boxes and lines only: bring it to all, and count it."""
    room = Postroom(url)
    for name in boxes:
        box = open_box(room, Options(url, ""), name)
        await box.enqueue_many([message(line, feed.length) for line in range(LINES)])
    await room.close()
    feed.length += 1
