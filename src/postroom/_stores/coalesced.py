"""Lets concurrent puts share a transaction.

While a put runs, the puts that other tasks start meanwhile wait, and then run as one. There is no timer: a put that
finds no other starts at once. Each caller gets its own receipts, after its own commit. If a shared put fails, each put
runs alone, so that the error of one caller reaches only that caller; except an error of the server, which all get.

A row lock of another transaction delays only the puts that need it:

* A put that runs for longer than OVERTAKE_SECONDS is overtaken: the puts behind it start without it.
* A shared put waits for a lock for at most LOCK_TIMEOUT, if the store can limit that. Then its puts run alone, side by
  side, each with the same limit. Those that reach it wait without a limit, at most MAX_SLOW at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from postroom._kernel.local import PerLoop
from postroom._stores.wrapper import AnyStore, AsyncVerb, StoreWrapper
from postroom.spi import Box, Draft, Receipt, Tx, Verb

MAX_DRAFTS = 1000
MAX_CONTENT = 4_000_000
"""Characters or bytes of payload in a shared put: a server limits the size of a statement."""
OVERTAKE_SECONDS = 0.05
"""The time after which a running put no longer delays the puts behind it."""
LOCK_TIMEOUT = 0.1
"""Seconds for which a shared put waits for a lock: longer than the commit of another transaction on a slow disk."""
MAX_SLOW = 4
"""Overtaken puts that run at the same time: each uses a connection."""

Put = Callable[[Box, Sequence[Draft]], Awaitable[list[Receipt]]]
Predicate = Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPuts:
    """How the puts of several callers of a store can share a transaction."""

    put: Put
    """Puts drafts of one box in a new transaction."""
    is_shared_error: Predicate
    """Returns True for an error of the server, which concerns all callers of a shared put."""
    put_with_lock_timeout: Put | None = None
    """Like `put`, but raises an error for which `is_lock_timeout` is true after LOCK_TIMEOUT. None if the store cannot
    limit the wait: all callers of a shared put then wait for the locks of all."""
    is_lock_timeout: Predicate = lambda _error: False
    check: Callable[[], None] = lambda: None
    """Runs in the task of each caller, and raises if the caller must not put without `tx`."""


@runtime_checkable
class Coalescible(Protocol):
    """Async stores whose concurrent puts may share a transaction."""

    shared_puts: SharedPuts


class CoalescedStore(StoreWrapper):
    """Shares the transactions of puts without `tx`."""

    def __init__(self, inner: AnyStore) -> None:
        self._puts: SharedPuts = inner.shared_puts
        self._coalescers = PerLoop(lambda: Coalescer(self._puts))
        super().__init__(inner)

    def around(self, verb: Verb, function: AsyncVerb) -> AsyncVerb:
        if verb.name != "put":
            return function
        check, coalescers = self._puts.check, self._coalescers

        async def coalesced(box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> list[Receipt]:
            if tx is not None:
                receipts: list[Receipt] = await function(box, drafts, tx=tx)
                return receipts
            check()
            return await coalescers.get().put(box, drafts)

        return coalesced


class _Waiting(NamedTuple):
    """A put whose caller waits for its receipts."""

    box: Box
    drafts: Sequence[Draft]
    size: int
    """The sum of the lengths of the payloads."""
    receipts: asyncio.Future[list[Receipt]]


class Coalescer:
    """The puts of one event loop."""

    def __init__(self, puts: SharedPuts) -> None:
        self._puts = puts
        self._waiting: deque[_Waiting] = deque()
        self._blocked: deque[_Waiting] = deque()
        """Puts that have reached the lock timeout, and wait until fewer than MAX_SLOW puts are slow."""
        self._flusher: asyncio.Task[None] | None = None
        """Runs the waiting puts, one shared put after the other."""
        self._slow: set[asyncio.Task[None] | None] = set()
        """Flushers that were overtaken, and puts that wait for a lock without a limit."""

    async def put(self, box: Box, drafts: Sequence[Draft]) -> list[Receipt]:
        """Puts the drafts, alone or together with others, and returns their receipts after the commit."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(box, drafts, sum(len(draft.payload) for draft in drafts), loop.create_future())
        self._waiting.append(waiting)
        self._start(loop)
        return await waiting.receipts

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._blocked and not self._is_full():
            self._slow.add(loop.create_task(self._wait_for_lock(self._blocked.popleft())))
        may_flush = self._puts.put_with_lock_timeout is not None or not self._is_full()
        if self._flusher is None and self._waiting and may_flush:
            self._flusher = loop.create_task(self._flush())

    def _is_full(self) -> bool:
        """Returns True if slow puts use all the connections that they may use."""
        return len(self._slow) >= MAX_SLOW

    async def _flush(self) -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        try:
            while self._waiting and self._flusher is me:
                overtaking = loop.call_later(OVERTAKE_SECONDS, self._overtake, me)
                await self._put_together(self._take())
                overtaking.cancel()
        finally:
            self._slow.discard(me)
            if self._flusher is me:
                self._flusher = None
                for left in self._waiting:  # there are some only if the loop closes and cancels this task
                    left.receipts.cancel()
                self._waiting.clear()
            self._start(loop)

    def _overtake(self, slow: asyncio.Task[None] | None) -> None:
        """Lets the puts that wait behind this flusher start without it."""
        if self._flusher is slow:
            self._slow.add(slow)
            self._flusher = None
            self._start(asyncio.get_running_loop())

    def _take(self) -> list[_Waiting]:
        """Takes the first waiting puts of one box, up to MAX_DRAFTS and MAX_CONTENT."""
        batch = [self._waiting.popleft()]
        count, size = len(batch[0].drafts), batch[0].size
        while self._waiting and self._waiting[0].box == batch[0].box:
            count, size = count + len(self._waiting[0].drafts), size + self._waiting[0].size
            if count > MAX_DRAFTS or size > MAX_CONTENT:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _put_together(self, batch: list[_Waiting]) -> None:
        if len(batch) == 1:
            await self._put_alone(batch[0], may_block=not self._is_full())
            return
        drafts = [draft for waiting in batch for draft in waiting.drafts]
        try:
            put = self._puts.put_with_lock_timeout or self._puts.put
            receipts = iter(await put(batch[0].box, drafts))
        except Exception as error:  # noqa: BLE001 - the callers get it
            if self._puts.is_lock_timeout(error):
                await self._put_side_by_side(batch)
            elif self._puts.is_shared_error(error):
                for waiting in batch:
                    _finish(waiting, error)
            else:
                for waiting in batch:
                    await self._put_alone(waiting)
            return
        for waiting in batch:
            _finish(waiting, [next(receipts) for _ in waiting.drafts])

    async def _put_side_by_side(self, batch: list[_Waiting]) -> None:
        """Runs each put alone, since it is unknown which of them need the lock that another transaction holds."""
        connections = asyncio.Semaphore(MAX_SLOW)

        async def put(waiting: _Waiting) -> None:
            async with connections:
                await self._put_alone(waiting, may_block=False)

        await asyncio.gather(*map(put, batch))

    async def _put_alone(self, waiting: _Waiting, *, may_block: bool = True) -> None:
        """Runs one put. Unless it may block, a put that reaches the lock timeout is moved to the blocked ones."""
        limited = None if may_block else self._puts.put_with_lock_timeout
        try:
            _finish(waiting, await (limited or self._puts.put)(waiting.box, waiting.drafts))
        except Exception as error:  # noqa: BLE001 - its caller gets it
            if limited is not None and self._puts.is_lock_timeout(error):
                self._blocked.append(waiting)
                self._start(asyncio.get_running_loop())
            else:
                _finish(waiting, error)

    async def _wait_for_lock(self, waiting: _Waiting) -> None:
        try:
            if not waiting.receipts.done():  # its caller may be cancelled by now
                await self._put_alone(waiting)
        finally:
            waiting.receipts.cancel()  # does nothing if it has a result
            self._slow.discard(asyncio.current_task())
            self._start(asyncio.get_running_loop())


def _finish(waiting: _Waiting, result: list[Receipt] | Exception) -> None:
    if waiting.receipts.done():  # its caller was cancelled
        return
    if isinstance(result, Exception):
        waiting.receipts.set_exception(result)
    else:
        waiting.receipts.set_result(result)
