"""SIGINT and SIGTERM of a worker process: the first asks it to stop, the second to stop at once, a third ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """A context manager, for the main thread of a process. While it is open, no signal interrupts a handler: a
    KeyboardInterrupt inside of it would look like an error of the handler, which a handler may also catch."""

    def __init__(self, hurry: Callable[[], None]) -> None:
        """`hurry` is called in the event loop after the second signal."""
        self.first = asyncio.Event()
        self.second: int | None = None
        """The second signal, if there was one: the process should end by it."""
        self._loop = asyncio.get_running_loop()
        self._hurry = hurry
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Not by the event loop's own handlers: while a handler blocks the loop, nothing would see a second signal.
        self._before = {number: signal.signal(number, self._asks_to_stop) for number in NUMBERS}
        return self

    def _asks_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        for number in NUMBERS:
            signal.signal(number, self._asks_to_stop_at_once)
        self._loop.call_soon_threadsafe(self.first.set)

    def _asks_to_stop_at_once(self, number: int, _frame: FrameType | None) -> None:
        self.second = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self._hurry)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
