"""The thread of a plain discovery function in an async room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar

R = TypeVar("R")


class DiscoveryThread(Generic[R]):
    """Calls a function in a thread, one call at a time.

    The threads of the event loop are not used: a function that does not return would take one of them with each call,
    until host names cannot be resolved any more. It is a daemon, so that such a function does not prevent the end of
    the process.
    """

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._lock = threading.Lock()  # a room may run in several event loops
        self._last: Future[R] | None = None

    async def call(self) -> R:
        """Waits until an earlier call has returned, and calls the function."""
        import asyncio

        future: Future[R] = Future()
        future.set_running_or_notify_cancel()  # so that a caller that is cancelled does not cancel it
        while (last := self._begin(future)) is not future:
            with suppress(Exception):  # its caller gets it
                await asyncio.wrap_future(last)
        return await asyncio.wrap_future(future)

    def _begin(self, future: Future[R]) -> Future[R]:
        """Returns the future of the call that runs: the given one, or that of an earlier call."""
        with self._lock:
            if self._last is None or self._last.done():
                run = copy_context().run
                threading.Thread(target=run, args=(self._run, future), name="postroom discovery", daemon=True).start()
                self._last = future
            return self._last

    def _run(self, future: Future[R]) -> None:
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)
        else:
            future.set_result(result)
