"""Slots: how many handlers of one box may run at the same time, over all stores."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager

from postroom._runtime.schedule import now


class Slots:
    """The slots of one box. A free slot goes to the visit whose store has had the least handler time for its weight.

    `time` is the weighted handler time of the visit that got the last slot. A visit begins with it, so that a store
    that was idle saves up nothing.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[HandlerTime, deque[asyncio.Future[None]]] = {}
        self.time = 0.0

    async def acquire(self, visit: HandlerTime) -> None:
        """Waits for a slot."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(visit, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.release()  # it was given at the same moment
            raise
        self.time = max(self.time, visit.spent)

    def release(self) -> None:
        """Makes a slot free. It is given away after the task that had it could ask for another one."""
        self._free += 1
        if self._waiting:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._give)  # twice, since that task may have yielded once (`Work`)

    def _give(self) -> None:
        while self._free and self._waiting:
            visit = min(self._waiting, key=_spent)
            future = self._waiting[visit].popleft()
            if not self._waiting[visit]:
                del self._waiting[visit]
            if not future.done():  # otherwise its task was cancelled
                self._free -= 1
                future.set_result(None)


class HandlerTime(AbstractAsyncContextManager[None]):
    """Holds a slot of the box while a handler of one visit runs, and measures the time."""

    def __init__(self, slots: Slots, weight: float) -> None:
        self._slots = slots
        self._weight = weight
        self._running = 0
        self._since = 0.0
        self._seconds = 0.0
        self.spent = slots.time
        """The handler time so far, divided by the weight of the store."""

    async def __aenter__(self) -> None:
        await self._slots.acquire(self)
        self._count(1)

    async def __aexit__(self, *error: object) -> None:
        self._count(-1)
        self._slots.release()

    def _count(self, change: int) -> None:
        at = now()
        seconds = self._running * (at - self._since)
        self._seconds += seconds
        self.spent += seconds / self._weight
        self._running += change
        self._since = at

    def take(self) -> float:
        """Returns the seconds since the last call."""
        self._count(0)
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _spent(visit: HandlerTime) -> float:
    return visit.spent
