"""What the tests of probes share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

from postroom._connect import open_store
from postroom._stores.probe import PollingProbe
from postroom.spi import Box, Draft
from tests.runtime.support import soon

BOX = Box("inbox", "box")
INTERVAL = 0.01


def put(url: str, **options: Any) -> None:
    """Puts a message through a store that is open only for this."""
    store = open_store(url, mode="sync", **options)
    try:
        store.put(BOX, [Draft("s", uuid4().hex)])
    finally:
        store.close()


class Looks:
    """Counts the looks of a probe that polls."""

    def __init__(self, probe: PollingProbe) -> None:
        self.done = 0
        self._changed = asyncio.Condition()
        self._read = probe._read
        probe._read = self._counting  # type: ignore[method-assign]

    async def _counting(self, targets: Mapping[str, str]) -> Mapping[str, Any]:
        found = await self._read(targets)
        async with self._changed:
            self.done += 1
            self._changed.notify_all()
        return found

    async def more(self, count: int) -> None:
        """Waits for so many further looks."""
        last = self.done + count
        async with self._changed:
            await soon(self._changed.wait_for(lambda: self.done >= last))


@contextlib.asynccontextmanager
async def waiting(probe: Any) -> AsyncIterator[asyncio.Task[frozenset[str]]]:
    """Starts to wait. The task is cancelled at the end."""
    task = asyncio.create_task(probe.wait())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def is_silent(probe: Any, looks: Looks) -> bool:
    """Returns True if several looks in a row find nothing. A server may have something to do first, such as ANALYZE."""
    for _ in range(5):
        async with waiting(probe) as task:
            await looks.more(1)
            more = asyncio.create_task(looks.more(5))
            await asyncio.wait([task, more], return_when=asyncio.FIRST_COMPLETED)
            more.cancel()
            if not task.done():
                return True
    return False
