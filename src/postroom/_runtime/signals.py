"""SIGINT and SIGTERM of a worker process: the first stops it, the second stops it at once, the third ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """A context manager for the main thread of a process.

    While it is open, no signal interrupts a handler. A KeyboardInterrupt in a handler would look like its error, and
    the handler could catch it.
    """

    def __init__(self, stop_at_once: Callable[[], None]) -> None:
        """`stop_at_once`: called in the event loop after the second signal."""
        self.first = asyncio.Event()
        self.second: int | None = None
        """The number of the second signal, if there was one. The process should end by it."""
        self._loop = asyncio.get_running_loop()
        self._stop_at_once = stop_at_once
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        # Not `loop.add_signal_handler`: while a handler blocks the loop, it would not see a second signal.
        self._before = {number: signal.signal(number, self._first_signal) for number in NUMBERS}
        return self

    def _first_signal(self, _number: int, _frame: FrameType | None) -> None:
        for number in NUMBERS:
            signal.signal(number, self._second_signal)
        self._loop.call_soon_threadsafe(self.first.set)

    def _second_signal(self, number: int, _frame: FrameType | None) -> None:
        self.second = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self._stop_at_once)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
