"""Looks at stores of one server wait for each other, so that idle stores need one connection per server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroom._kernel.cancellation import cancel_once

T = TypeVar("T")

SLOW_SECONDS = 1.0
"""A look that takes longer no longer keeps the others of its server waiting."""
SUSPECT_LOOKS = 4
"""Looks at stores that have failed which may be under way at the same time."""


class _Queue:
    __slots__ = ("limit", "under_way", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.under_way = 0
        self.waiting: deque[Callable[[], Awaitable[None]]] = deque()


class ServerQueues:
    """Runs looks: one at a time for each server, and a few for stores that have failed."""

    def __init__(self) -> None:
        self._by_server: dict[str, _Queue] = {}
        self._suspects = _Queue(SUSPECT_LOOKS)
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, server: str, look: Callable[[T], Awaitable[None]], subject: T, *, is_suspect: bool) -> None:
        """Begins a look, now or after those before it. A look at a suspect delays only other suspects."""
        queue = self._suspects if is_suspect else self._by_server.setdefault(server, _Queue(1))
        queue.waiting.append(lambda: look(subject))
        self._begin(queue)

    async def close(self) -> None:
        """Cancels all looks, and waits until they have ended."""
        for queue in (self._suspects, *self._by_server.values()):
            queue.waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            cancel_once(task)
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, queue: _Queue) -> None:
        while queue.waiting and queue.under_way < queue.limit:
            queue.under_way += 1
            task = asyncio.ensure_future(self._run(queue, queue.waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, queue: _Queue, look: Callable[[], Awaitable[None]]) -> None:
        is_counted = True

        def leave() -> None:
            nonlocal is_counted
            if is_counted:
                is_counted = False
                queue.under_way -= 1
                self._begin(queue)

        timer = None if queue is self._suspects else asyncio.get_running_loop().call_later(SLOW_SECONDS, leave)
        try:
            await look()
        finally:
            if timer is not None:
                timer.cancel()
            leave()
