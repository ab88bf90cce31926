"""Receives the notifications of other processes, on one connection that does nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from postroom._stores.sql.network import AsyncPool, Checkout
from postroom._stores.sql.postgres.notifications import REPEAT_SECONDS
from postroom._stores.sql.transactions import Connection

_log = logging.getLogger("postroom")

ALL_BOXES: frozenset[str] = frozenset()
CHECK_SECONDS = 30.0
"""Seconds without a notification after which the listener checks that its connection is alive."""

OnNotification = Callable[[str], None]


class Subscription(Protocol):
    """A connection that listens to a channel. The adapter of a client library makes it."""

    async def receive(self, seconds: float) -> None:
        """Passes on notifications for so many seconds. Raises if the connection is lost."""

    async def close(self) -> None:
        """Stops listening."""


class Listener:
    """Connects with the first `wait`, and again with the first `wait` after its connection was lost."""

    def __init__(self, pool: AsyncPool, channel: str, *, repeats: bool = True) -> None:
        """`repeats`: whether a notification also stands for commits shortly after it, which are not notified."""
        self._pool = pool
        self._repeats = repeats
        self._channel = channel
        self._checkout: Checkout | None = None
        self._subscription: Subscription | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._boxes: set[str] = set()
        """The keys of boxes that were notified since the last `wait`."""
        self._changed = asyncio.Event()
        self._is_lost = False

    async def wait(self) -> frozenset[str]:
        """Waits for a notification; returns the keys of the boxes that may have work.

        Returns `ALL_BOXES` after connecting: there are no notifications of earlier commits.
        """
        if self._checkout is None:
            await self._open()
            return ALL_BOXES
        while not (self._boxes or self._is_lost):
            self._changed.clear()
            await self._changed.wait()
        if self._is_lost:
            await self.close()
            raise ConnectionError("the listening connection was lost; workers poll until it is back")
        boxes, self._boxes = frozenset(self._boxes), set()
        return boxes

    async def _open(self) -> None:
        checkout = await self._pool.acquire()
        self._boxes, self._is_lost = set(), False
        try:
            subscribe = self._pool.adapter.subscribe
            self._subscription = await subscribe(checkout.connection, self._channel, self._notified)
        except BaseException:
            await self._pool.release(checkout, broken=True)
            raise
        self._checkout = checkout
        self._receiving = asyncio.create_task(self._receive(self._subscription, checkout.connection))

    async def _receive(self, subscription: Subscription, connection: Connection) -> None:
        try:
            while True:
                await subscription.receive(CHECK_SECONDS)
                # A lost connection may look like a silent one.
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._pool.adapter.fetch(connection, "SELECT 1", ())
        except Exception:  # noqa: BLE001 - the cause does not matter: there are no more notifications
            _log.info("the listening connection has ended")
        finally:
            self._is_lost = True
            self._changed.set()

    def _notified(self, box: str) -> None:
        """Wakes the worker now, and again after `REPEAT_SECONDS`: not every commit is notified (`notifications.py`)."""
        self._add(box)
        if self._repeats:
            asyncio.get_running_loop().call_later(REPEAT_SECONDS, self._add, box)

    def _add(self, box: str) -> None:
        self._boxes.add(box)
        self._changed.set()

    async def close(self) -> None:
        checkout, self._checkout = self._checkout, None
        if checkout is None:
            return
        broken = self._is_lost
        try:
            await self._stop()
        except Exception:  # noqa: BLE001 - the connection is closed then
            broken = True
        await self._pool.release(checkout, broken=broken)

    async def _stop(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
        if self._subscription is not None:
            await self._subscription.close()
