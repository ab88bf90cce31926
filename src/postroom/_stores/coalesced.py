"""Lets concurrent puts, and begins and settles of guards, share a transaction.

While a call runs, the calls of the same verb that other tasks start meanwhile wait, and then run as one. There is no
timer: a call that finds no other starts at once. Each caller gets its own results, after its own commit. If a shared
call fails, each call runs alone, so that the error of one caller reaches only that caller; except an error of the
server, which all get.

A row lock of another transaction delays only the calls that need it:

* A call that runs for longer than OVERTAKE_SECONDS is overtaken: the calls behind it start without it.
* A shared call waits for a lock for at most LOCK_TIMEOUT, if the store can limit that. Then its calls run alone, side
  by side, each with the same limit. Those that reach it wait without a limit, at most MAX_SLOW at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from postroom._kernel.local import PerLoop
from postroom._stores.wrapper import AnyStore, AsyncVerb, StoreWrapper
from postroom.spi import Box, Draft, Settlement, Tx, Verb

MAX_ITEMS = 1000
MAX_CONTENT = 4_000_000
"""Characters or bytes of payload in a shared call: a server limits the size of a statement."""
OVERTAKE_SECONDS = 0.05
"""The time after which a running call no longer delays the calls behind it."""
LOCK_TIMEOUT = 0.1
"""Seconds for which a shared call waits for a lock: longer than the commit of another transaction on a slow disk."""
MAX_SLOW = 4
"""Overtaken calls of a verb that run at the same time: each uses a connection."""

Items = Sequence[Any]
"""What a shared verb takes besides the box: drafts, begins or settlements. It returns a result for each."""
Call = Callable[[Box, Items], Awaitable[Items]]
Predicate = Callable[[BaseException], bool]


def _draft_size(draft: Draft) -> int:
    return len(draft.payload)


def _settlement_size(settlement: Settlement) -> int:
    return 0 if settlement.result is None else len(settlement.result.payload)


SIZES: Mapping[str, Callable[[Any], int]] = {"put": _draft_size, "begin": lambda _begin: 0, "settle": _settlement_size}
"""The verbs whose calls are shared, each with the size of the content of an item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How calls of several callers of a store can share a transaction."""

    is_shared_error: Predicate
    """Returns True for an error of the server, which concerns all callers of a shared call."""
    limits_locks: bool = False
    """Whether the verbs take `lock_timeout` in seconds, after which they raise an error for which `is_lock_timeout` is
    true. False: all callers of a shared call wait for the locks of all."""
    is_lock_timeout: Predicate = lambda _error: False
    check: Callable[[], None] = lambda: None
    """Runs in the task of each caller, and raises if the caller must not write without `tx`."""


@runtime_checkable
class Coalescible(Protocol):
    """Async stores whose concurrent calls may share a transaction."""

    sharing: Sharing


class CoalescedStore(StoreWrapper):
    """Shares the transactions of puts, and of begins and settles of guards, without `tx`."""

    def __init__(self, inner: AnyStore) -> None:
        self._sharing: Sharing = inner.sharing
        self.coalescers: dict[str, PerLoop[Coalescer]] = {}
        """By verb."""
        super().__init__(inner)

    def around(self, verb: Verb, function: AsyncVerb) -> AsyncVerb:
        if verb.name not in SIZES:
            return function
        check, size = self._sharing.check, SIZES[verb.name]
        # A worker settles its messages in batches, and a settle of a caller can be cancelled. Each execution of a guard
        # is settled alone, and its completion is not cancelled.
        only_guards = verb.name == "settle"
        coalescers = self.coalescers[verb.name] = PerLoop(lambda: Coalescer(function, size, self._sharing))

        async def coalesced(box: Box, items: Items, *, tx: Tx = None) -> Items:
            if tx is not None or (only_guards and box.kind != "guard"):
                results: Items = await function(box, items, tx=tx)
                return results
            check()
            return await coalescers.get().call(box, items)

        return coalesced


class _Waiting(NamedTuple):
    """A call whose caller waits for its results."""

    box: Box
    items: Items
    size: int
    """The sum of the sizes of its items."""
    results: asyncio.Future[Items]


class Coalescer:
    """The calls of one verb in one event loop."""

    def __init__(self, function: Callable[..., Awaitable[Items]], size: Callable[[Any], int], sharing: Sharing) -> None:
        self._call: Call = function
        self._limited: Call | None = partial(function, lock_timeout=LOCK_TIMEOUT) if sharing.limits_locks else None
        self._size = size
        self._sharing = sharing
        self._waiting: deque[_Waiting] = deque()
        self._blocked: deque[_Waiting] = deque()
        """Calls that have reached the lock timeout, and wait until fewer than MAX_SLOW calls are slow."""
        self._flusher: asyncio.Task[None] | None = None
        """Runs the waiting calls, one shared call after the other."""
        self._slow: set[asyncio.Task[None] | None] = set()
        """Flushers that were overtaken, and calls that wait for a lock without a limit."""

    async def call(self, box: Box, items: Items) -> Items:
        """Runs the call, alone or together with others, and returns its results after the commit."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(box, items, sum(map(self._size, items)), loop.create_future())
        self._waiting.append(waiting)
        self._start(loop)
        return await waiting.results

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._blocked and not self._is_full():
            self._slow.add(loop.create_task(self._wait_for_lock(self._blocked.popleft())))
        may_flush = self._limited is not None or not self._is_full()
        if self._flusher is None and self._waiting and may_flush:
            self._flusher = loop.create_task(self._flush())

    def _is_full(self) -> bool:
        """Returns True if slow calls use all the connections that they may use."""
        return len(self._slow) >= MAX_SLOW

    async def _flush(self) -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        try:
            while self._waiting and self._flusher is me:
                overtaking = loop.call_later(OVERTAKE_SECONDS, self._overtake, me)
                await self._run_together(self._take())
                overtaking.cancel()
        finally:
            self._slow.discard(me)
            if self._flusher is me:
                self._flusher = None
                for left in self._waiting:  # there are some only if the loop closes and cancels this task
                    left.results.cancel()
                self._waiting.clear()
            self._start(loop)

    def _overtake(self, slow: asyncio.Task[None] | None) -> None:
        """Lets the calls that wait behind this flusher start without it."""
        if self._flusher is slow:
            self._slow.add(slow)
            self._flusher = None
            self._start(asyncio.get_running_loop())

    def _take(self) -> list[_Waiting]:
        """Takes the first waiting calls of one box, up to MAX_ITEMS and MAX_CONTENT."""
        batch = [self._waiting.popleft()]
        count, size = len(batch[0].items), batch[0].size
        while self._waiting and self._waiting[0].box == batch[0].box:
            count, size = count + len(self._waiting[0].items), size + self._waiting[0].size
            if count > MAX_ITEMS or size > MAX_CONTENT:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run_together(self, batch: list[_Waiting]) -> None:
        if len(batch) == 1:
            await self._run_alone(batch[0], may_block=not self._is_full())
            return
        items = [item for waiting in batch for item in waiting.items]
        try:
            results = iter(await (self._limited or self._call)(batch[0].box, items))
        except Exception as error:  # noqa: BLE001 - the callers get it
            if self._sharing.is_lock_timeout(error):
                await self._run_side_by_side(batch)
            elif self._sharing.is_shared_error(error):
                for waiting in batch:
                    _finish(waiting, error)
            else:
                for waiting in batch:
                    await self._run_alone(waiting)
            return
        for waiting in batch:
            _finish(waiting, [next(results) for _ in waiting.items])

    async def _run_side_by_side(self, batch: list[_Waiting]) -> None:
        """Runs each call alone, since it is unknown which of them need the lock that another transaction holds."""
        connections = asyncio.Semaphore(MAX_SLOW)

        async def run(waiting: _Waiting) -> None:
            async with connections:
                await self._run_alone(waiting, may_block=False)

        await asyncio.gather(*map(run, batch))

    async def _run_alone(self, waiting: _Waiting, *, may_block: bool = True) -> None:
        """Runs one call. Unless it may block, a call that reaches the lock timeout is moved to the blocked ones."""
        limited = None if may_block else self._limited
        try:
            _finish(waiting, await (limited or self._call)(waiting.box, waiting.items))
        except Exception as error:  # noqa: BLE001 - its caller gets it
            if limited is not None and self._sharing.is_lock_timeout(error):
                self._blocked.append(waiting)
                self._start(asyncio.get_running_loop())
            else:
                _finish(waiting, error)

    async def _wait_for_lock(self, waiting: _Waiting) -> None:
        try:
            if not waiting.results.done():  # its caller may be cancelled by now
                await self._run_alone(waiting)
        finally:
            waiting.results.cancel()  # does nothing if it has a result
            self._slow.discard(asyncio.current_task())
            self._start(asyncio.get_running_loop())


def _finish(waiting: _Waiting, result: Items | Exception) -> None:
    if waiting.results.done():  # its caller was cancelled
        return
    if isinstance(result, Exception):
        waiting.results.set_exception(result)
    else:
        waiting.results.set_result(result)
