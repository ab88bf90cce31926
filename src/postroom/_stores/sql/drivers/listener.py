"""Hears what other processes have written, on one connection that does nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from postroom._stores.sql.drivers.pools import Lease, Pool
from postroom._stores.sql.engines.postgres.wakeups import AGAIN

EVERYTHING: frozenset[str] = frozenset()


class Listener:
    """Opened by the first `wait`, and again by the first one after its connection was lost."""

    def __init__(self, pool: Pool, channel: str) -> None:
        self._pool = pool
        self._channel = channel
        self._lease: Lease | None = None
        self._stop: Callable[[], Awaitable[None]] | None = None
        self._heard: set[str] = set()
        self._news = asyncio.Event()
        self._is_lost = False

    async def wait(self) -> frozenset[str]:
        """The keys of boxes that may have work; after a new beginning, all of them: `EVERYTHING`."""
        if self._lease is None:
            await self._open()
            return EVERYTHING
        while not (self._heard or self._is_lost):
            self._news.clear()
            await self._news.wait()
        if self._is_lost:
            await self.close()
            raise ConnectionError("the listening connection was lost; workers poll until it is back")
        heard, self._heard = frozenset(self._heard), set()
        return heard

    async def _open(self) -> None:
        lease = await self._pool.acquire()
        try:
            self._heard, self._is_lost = set(), False
            self._stop = await self._pool.wire.listen(lease.connection, self._channel, self._hear, self._lose)
        except BaseException:
            await self._pool.release(lease, broken=True)
            raise
        self._lease = lease

    def _hear(self, box: str) -> None:
        self._look(box)
        asyncio.get_running_loop().call_later(AGAIN, self._look, box)

    def _look(self, box: str) -> None:
        self._heard.add(box)
        self._news.set()

    def _lose(self) -> None:
        self._is_lost = True
        self._news.set()

    async def close(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        broken = self._is_lost
        try:
            if self._stop is not None:
                await self._stop()
        except Exception:  # noqa: BLE001 - it is thrown away then
            broken = True
        await self._pool.release(lease, broken=broken)
