"""Reports a blocked event loop while it is blocked (decision 0011).

A thread schedules a callback in the loop and waits for it. If the loop does not run the callback in time, the thread
reads the stack of the loop's thread and finds the handler and its messages there. So a call of a handler costs nothing
extra.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple

from postroom._boxes.handlers import Handler
from postroom._kernel.message import AnyMessage
from postroom._kernel.texts import escape
from postroom._runtime.execute import Executor
from postroom._runtime.message_log import handler_name, name
from postroom._runtime.work import Work
from postroom._runtime.worker import Worker

_log = logging.getLogger("postroom")

MIN_BLOCKED_SECONDS = 0.1
"""A loop that is blocked for less is not reported, however short the leases are."""
MAX_NAMED_MESSAGES = 3
"""How many messages of a batch a log record names."""
ADVICE = (
    "leases are not renewed, and nothing else runs in this event loop. Write the handler as a plain function (def), "
    "which runs in a thread, or call what blocks by asyncio.to_thread"
)


class Call(NamedTuple):
    """A call of a handler, as found on a stack."""

    where: str
    handler: Handler
    messages: Sequence[AnyMessage]
    frames: list[FrameType]
    """From the handler to the innermost one."""


class Watchdog:
    """Watches the event loop in which it is started."""

    def __init__(self, store_name: str, workers: Callable[[], Sequence[Worker]]) -> None:
        """`workers`: returns the workers of the loop. It is called in another thread."""
        self._where = escape(f"store={store_name}")
        self.workers = workers
        self._watch: _Watch | None = None

    def start(self) -> None:
        """Starts the thread. Does nothing if it runs."""
        if self._watch is None or not self._watch.is_alive():
            self._watch = _Watch(self._where, self, asyncio.get_running_loop())
            weakref.finalize(self, self._watch.stop)
            self._watch.start()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


class _Watch(threading.Thread):
    """The thread of one run, from a start to a stop. It has only weak references to the loop and to the room."""

    def __init__(self, where: str, watchdog: Watchdog, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name=f"postroom watchdog {where}", daemon=True)
        self._where = where
        self._watchdog = weakref.ref(watchdog)
        self._loop = weakref.ref(loop)
        self._loop_thread = threading.get_ident()
        self._lease = 0.0
        self._stopped = threading.Event()
        self._responded = threading.Event()

    def stop(self) -> None:
        """Ends the thread, and does not wait for it: the thread may be waiting for the loop that calls this."""
        self._stopped.set()
        self._responded.set()

    def run(self) -> None:
        while not self._stopped.wait(self._pause()):
            if not self._schedule_callback():
                return  # the loop is closed
            limit = max(self._lease / 2, MIN_BLOCKED_SECONDS)
            scheduled = time.monotonic()
            # In two steps, so that a process which was suspended is not reported when it goes on.
            if self._responded.wait(limit * 0.75) or self._responded.wait(limit * 0.25):
                continue
            reported = self._report(time.monotonic() - scheduled)
            while not self._responded.wait(limit):
                if self._is_closed():
                    return
            if reported and not self._stopped.is_set():
                _log.info("%s the event loop runs again after %.1f s", self._where, time.monotonic() - scheduled)

    def _pause(self) -> float:
        """Returns a quarter of the shortest lease, so that the report comes before a lease ends."""
        leases = [worker.box.work.lease.total_seconds() for worker in self._workers()]
        self._lease = min(leases, default=self._lease)
        return max(self._lease / 4, MIN_BLOCKED_SECONDS / 2)

    def _schedule_callback(self) -> bool:
        """Returns False if the loop is closed or the watchdog stopped."""
        self._responded.clear()
        if self._stopped.is_set():
            return False
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._respond)
        except RuntimeError:
            return False
        return loop is not None

    def _respond(self) -> None:
        self._loop_thread = threading.get_ident()
        self._responded.set()

    def _is_blocked(self) -> bool:
        """Returns False for a loop that does not run, as between two calls of `run_until_complete`."""
        loop = self._loop()
        return loop is not None and loop.is_running() and not self._responded.is_set()

    def _is_closed(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    def _workers(self) -> Sequence[Worker]:
        watchdog = self._watchdog()
        return () if watchdog is None else watchdog.workers()

    def _report(self, seconds: float) -> bool:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way to another stack
        if frame is None or not self._is_blocked():
            return False
        call = find_call(frame)
        if call is not None:
            which = f"{_names(call.messages)} handler={handler_name(call.handler)}"
            at = _lines(call.frames)
            _log.warning("%s %s blocks the event loop since %.1f s at %s: %s", call.where, which, seconds, at, ADVICE)
        elif any(worker.in_hand for worker in self._workers()):
            message = (
                "%s the event loop is blocked since %.1f s by code outside of handlers, at %s: leases are not renewed"
            )
            _log.warning(message, self._where, seconds, _lines([frame]))
        else:
            return False
        return True


def find_call(frame: FrameType | None) -> Call | None:
    """Returns the call of a handler on the stack of this innermost frame."""
    inner: list[FrameType] = []
    while frame is not None:
        if frame.f_code is _ONE_BY_ONE:
            found = dict(frame.f_locals)
            return Call(found["self"].where, found["handler"], [found["message"]], inner[::-1] or [frame])
        if frame.f_code is _ANY:
            found = dict(frame.f_locals)
            return Call(found["self"].where, found["handler"], found["messages"], inner[::-1] or [frame])
        inner.append(frame)
        frame = frame.f_back
    return None


# The functions that call handlers. `find_call` uses the names of their variables.
_ONE_BY_ONE = Work._handle_each.__code__  # noqa: SLF001
_ANY = Executor._call.__code__  # noqa: SLF001


def _names(messages: Sequence[AnyMessage]) -> str:
    named = ", ".join(map(name, messages[:MAX_NAMED_MESSAGES]))
    more = len(messages) - MAX_NAMED_MESSAGES
    return f"{named} and {more} more" if more > 0 else named


def _lines(frames: list[FrameType]) -> str:
    """Returns the line of the handler, and the innermost line if that is another."""
    outer, inner = _line(frames[0]), _line(frames[-1])
    return outer if outer == inner else f"{outer}, in {inner}"


def _line(frame: FrameType) -> str:
    return escape(f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})")
