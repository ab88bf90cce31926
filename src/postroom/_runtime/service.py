"""A background task that is started again if it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from postroom._kernel.cancellation import cancel_once
from postroom._kernel.texts import ErrorTexts

_log = logging.getLogger("postroom")

CANCEL_AGAIN_SECONDS = 10.0


class Service:
    """Runs a coroutine function, the *duty*, as a task."""

    def __init__(
        self,
        name: str,
        duty: Callable[[], Awaitable[None]],
        *,
        restart_delay: float = 30.0,
        errors: ErrorTexts,
        is_transient: Callable[[Exception], bool] = lambda _error: False,
    ) -> None:
        """`is_transient`: returns whether an error may disappear on a retry; it is logged without a traceback."""
        self.name = name
        self._duty = duty
        self._restart_delay = restart_delay
        self._errors = errors
        self._is_transient = is_transient
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
            except Exception as error:  # noqa: BLE001 - a duty that fails is started again
                delay = self._restart_delay
                if self._is_transient(error):
                    _log.warning("%s: %s; it starts again in %.1f s", self.name, self._errors.of(error), delay)
                else:
                    message = "%s failed; it starts again in %.1f s"
                    self._errors.log(logging.ERROR, message, self.name, delay, error=error)
                await asyncio.sleep(self._restart_delay)
            else:
                return

    async def ends_within(self, seconds: float, *, unless: asyncio.Event) -> bool:
        """Returns True if the duty ends by itself in time and before the event `unless` is set."""
        if self._task is None:
            return True
        event = asyncio.create_task(unless.wait())
        try:
            await asyncio.wait([self._task, event], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            event.cancel()
        return self._task.done()

    async def cancel(self) -> None:
        """Cancels the duty and waits until it has ended.

        A library may drop the cancellation (see `_kernel/cancellation.py`), so it is repeated, after longer than a duty
        takes to clean up.
        """
        if self._task is None:
            return
        cancel_once(self._task)
        while not self._task.done():
            _, running = await asyncio.wait([self._task], timeout=CANCEL_AGAIN_SECONDS)
            if running:
                self._task.cancel()
