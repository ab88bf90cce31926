"""Concurrent puts share a transaction.

While one put is under way, those that come meanwhile wait together and go as one. Nobody waits for a timer: a lone put
starts at once. Each caller gets its own receipts, after its own commit; and where a shared put fails, each is tried
alone, so that one caller's error stays its own, unless it is the database's own trouble. A put that waits for somebody
else's lock holds up others only for a moment: then they go on without it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from postroom.spi import Box, Draft, Receipt

MOST_DRAFTS = 1000
PATIENCE = 0.05
"""Seconds after which a put that is under way is no longer waited for."""
MOST_SLOW = 4
"""Puts that may be under way so: each has a connection."""

Put = Callable[[Box, Sequence[Draft]], Awaitable[list[Receipt]]]


class _Waiting(NamedTuple):
    box: Box
    drafts: Sequence[Draft]
    receipts: asyncio.Future[list[Receipt]]


class Coalescer:
    """Wraps a store's own put."""

    def __init__(self, put: Put, is_transient: Callable[[BaseException], bool]) -> None:
        self._put = put
        self._is_transient = is_transient
        self._waiting: deque[_Waiting] = deque()
        self._flusher: asyncio.Task[None] | None = None
        self._slow: set[asyncio.Task[None] | None] = set()

    async def put(self, box: Box, drafts: Sequence[Draft]) -> list[Receipt]:
        loop = asyncio.get_running_loop()
        if self._flusher is not None and self._flusher.get_loop() is not loop:
            return await self._put(box, drafts)  # another loop's flusher cannot be waited for
        waiting = _Waiting(box, drafts, loop.create_future())
        self._waiting.append(waiting)
        self._start(loop)
        return await waiting.receipts

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._flusher is None and self._waiting and len(self._slow) < MOST_SLOW:
            self._flusher = loop.create_task(self._flush())

    async def _flush(self) -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        try:
            while self._waiting and self._flusher is me:
                patience = loop.call_later(PATIENCE, self._go_on_without, me)
                await self._together(self._take())
                patience.cancel()
        finally:
            self._slow.discard(me)
            if self._flusher is me:
                self._flusher = None
                for left in self._waiting:  # only if the loop is closing under us
                    left.receipts.cancel()
                self._waiting.clear()
            self._start(loop)

    def _go_on_without(self, slow: asyncio.Task[None] | None) -> None:
        """Whoever waits now, and whoever comes, need not wait for this one any longer."""
        if self._flusher is slow:
            self._slow.add(slow)
            self._flusher = None
            self._start(asyncio.get_running_loop())

    def _take(self) -> list[_Waiting]:
        """Those at the front that share a box, up to a fair size."""
        batch = [self._waiting.popleft()]
        size = len(batch[0].drafts)
        while self._waiting and self._waiting[0].box == batch[0].box:
            size += len(self._waiting[0].drafts)
            if size > MOST_DRAFTS:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _together(self, batch: list[_Waiting]) -> None:
        drafts = [draft for waiting in batch for draft in waiting.drafts]
        try:
            receipts = iter(await self._put(batch[0].box, drafts))
        except Exception as error:  # noqa: BLE001 - it is given to whoever it belongs to
            if len(batch) == 1 or self._is_transient(error):
                for waiting in batch:
                    _answer(waiting, error)
            else:
                for waiting in batch:
                    await self._together([waiting])
            return
        for waiting in batch:
            _answer(waiting, [next(receipts) for _ in waiting.drafts])


def _answer(waiting: _Waiting, answer: list[Receipt] | Exception) -> None:
    if waiting.receipts.done():  # its caller has gone
        return
    if isinstance(answer, Exception):
        waiting.receipts.set_exception(answer)
    else:
        waiting.receipts.set_result(answer)
