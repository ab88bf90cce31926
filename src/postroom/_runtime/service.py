"""A duty that runs in the background until it is stopped, and is started again if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from postroom._kernel.texts import ErrorTexts

_log = logging.getLogger("postroom")

CANCEL_AGAIN_SECONDS = 10.0


def check_cancelled() -> None:
    """Raise a cancellation of this task that was lost on the way: see `Service.cancel`. For loops that never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Service:
    """Runs a coroutine function as a task."""

    def __init__(
        self,
        name: str,
        duty: Callable[[], Awaitable[None]],
        *,
        restart_delay: float = 30.0,
        errors: ErrorTexts,
        passes: Callable[[Exception], bool] = lambda _error: False,
    ) -> None:
        """`passes`: whether an error is one that passes by itself, and needs no traceback."""
        self.name = name
        self._duty = duty
        self._restart_delay = restart_delay
        self._errors = errors
        self._passes = passes
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.is_running:
            self._task = asyncio.create_task(self._run(), name=self.name)

    async def _run(self) -> None:
        while True:
            try:
                await self._duty()
            except Exception as error:  # noqa: BLE001 - a duty that fails is tried again
                delay = self._restart_delay
                if self._passes(error):
                    _log.warning("%s: %s; it starts again in %.1f s", self.name, self._errors.of(error), delay)
                else:
                    message = "%s failed; it starts again in %.1f s"
                    self._errors.log(logging.ERROR, message, self.name, delay, error=error)
                await asyncio.sleep(self._restart_delay)
            else:
                return

    async def ends_within(self, seconds: float, *, unless: asyncio.Event) -> bool:
        """Whether the duty ended by itself in time, and before the event `unless`."""
        if self._task is None:
            return True
        event = asyncio.create_task(unless.wait())
        try:
            await asyncio.wait([self._task, event], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            event.cancel()
        return self._task.done()

    async def cancel(self) -> None:
        """Cancel the duty and wait for its end.

        A cancellation may be lost: `asyncio.wait_for` of Python 3.11, which drivers use, drops one that comes as it
        ends. So it is repeated, after longer than a duty takes to clean up.
        """
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_AGAIN_SECONDS)
