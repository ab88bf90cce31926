"""Concurrent puts share a transaction.

While one put is under way, those that come meanwhile wait together and go as one. Nobody waits for a timer: a lone put
starts at once. Each caller gets its own receipts, after its own commit; and where a shared put fails, each is tried
alone, so that one caller's error stays its own, unless it is the database's own trouble.

Somebody else's lock holds up only whoever needs it. A lone put that waits is left behind after a moment, and the others
go on without it. A shared put is in a hurry, where the store can be: if it does not get a lock in time, its callers go
alone, side by side, and those that still do not get it wait by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from postroom.spi import Box, Draft, Receipt

MOST_DRAFTS = 1000
MOST_CONTENT = 4_000_000
"""Characters or bytes of payload that go together: a server has a limit for what it takes at once."""
PATIENCE = 0.05
"""Seconds after which a put that is under way is no longer waited for."""
LOCK_PATIENCE = 0.1
"""Seconds for which a shared put waits for a lock: longer than a slow disk takes for somebody else's commit."""
MOST_SLOW = 4
"""Puts that may be under way so: each has a connection."""

Put = Callable[[Box, Sequence[Draft]], Awaitable[list[Receipt]]]
Judge = Callable[[BaseException], bool]


class _Waiting(NamedTuple):
    box: Box
    drafts: Sequence[Draft]
    size: int
    """Of all their contents."""
    receipts: asyncio.Future[list[Receipt]]


class Coalescer:
    """Wraps a store's own put, in one event loop."""

    def __init__(
        self, put: Put, is_transient: Judge, *, hurried: Put | None = None, is_locked: Judge = lambda _error: False
    ) -> None:
        """`hurried`: the same put, which waits for a lock no longer than LOCK_PATIENCE, and then fails with what
        `is_locked` tells. Without it, all that share a put wait as long as the one who must wait longest."""
        self._put = put
        self._hurried = hurried
        self._is_transient = is_transient
        self._is_locked = is_locked
        self._waiting: deque[_Waiting] = deque()
        self._blocked: deque[_Waiting] = deque()
        """Those that need a lock, and wait until one of the slow is done."""
        self._flusher: asyncio.Task[None] | None = None
        self._slow: set[asyncio.Task[None] | None] = set()

    async def put(self, box: Box, drafts: Sequence[Draft]) -> list[Receipt]:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(box, drafts, sum(len(draft.payload) for draft in drafts), loop.create_future())
        self._waiting.append(waiting)
        self._start(loop)
        return await waiting.receipts

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._blocked and not self._is_full():
            self._slow.add(loop.create_task(self._wait_for_lock(self._blocked.popleft())))
        may_flush = self._hurried is not None or not self._is_full()
        if self._flusher is None and self._waiting and may_flush:
            self._flusher = loop.create_task(self._flush())

    def _is_full(self) -> bool:
        """Whether no more connections may be spent on puts that are slow."""
        return len(self._slow) >= MOST_SLOW

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
        count, size = len(batch[0].drafts), batch[0].size
        while self._waiting and self._waiting[0].box == batch[0].box:
            count, size = count + len(self._waiting[0].drafts), size + self._waiting[0].size
            if count > MOST_DRAFTS or size > MOST_CONTENT:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _together(self, batch: list[_Waiting]) -> None:
        if len(batch) == 1:
            await self._alone(batch[0], in_a_hurry=self._is_full())
            return
        drafts = [draft for waiting in batch for draft in waiting.drafts]
        try:
            receipts = iter(await (self._hurried or self._put)(batch[0].box, drafts))
        except Exception as error:  # noqa: BLE001 - it is given to whoever it belongs to
            if self._is_locked(error):
                await self._side_by_side(batch)
            elif self._is_transient(error):
                for waiting in batch:
                    _answer(waiting, error)
            else:
                for waiting in batch:
                    await self._alone(waiting)
            return
        for waiting in batch:
            _answer(waiting, [next(receipts) for _ in waiting.drafts])

    async def _side_by_side(self, batch: list[_Waiting]) -> None:
        """Some of them need a lock that somebody has. It is not known who."""
        room = asyncio.Semaphore(MOST_SLOW)

        async def go(waiting: _Waiting) -> None:
            async with room:
                await self._alone(waiting, in_a_hurry=True)

        await asyncio.gather(*map(go, batch))

    async def _alone(self, waiting: _Waiting, *, in_a_hurry: bool = False) -> None:
        """In a hurry, who does not get a lock waits for it later, and not here."""
        put = self._hurried if in_a_hurry else None
        try:
            _answer(waiting, await (put or self._put)(waiting.box, waiting.drafts))
        except Exception as error:  # noqa: BLE001 - it is its own
            if put is not None and self._is_locked(error):
                self._blocked.append(waiting)
                self._start(asyncio.get_running_loop())
            else:
                _answer(waiting, error)

    async def _wait_for_lock(self, waiting: _Waiting) -> None:
        try:
            if not waiting.receipts.done():  # its caller may have gone meanwhile
                await self._alone(waiting)
        finally:
            waiting.receipts.cancel()  # does nothing where it has its answer
            self._slow.discard(asyncio.current_task())
            self._start(asyncio.get_running_loop())


def _answer(waiting: _Waiting, answer: list[Receipt] | Exception) -> None:
    if waiting.receipts.done():  # its caller has gone
        return
    if isinstance(answer, Exception):
        waiting.receipts.set_exception(answer)
    else:
        waiting.receipts.set_result(answer)
