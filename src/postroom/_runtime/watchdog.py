"""Reports a blocked event loop while it is blocked (decision 0011).

A thread asks the loop to run a callback, and waits for it. If the loop does not run it in time, the thread reads the
stack of the loop's thread, where it finds the handler and its messages. So handlers cost nothing extra.
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
from typing import Any, NamedTuple

from postroom._faces.handlers import Handler
from postroom._kernel.message import Message
from postroom._kernel.texts import escape
from postroom._runtime.execute import Executor
from postroom._runtime.pump import Pump
from postroom._runtime.report import handler_name, name

_log = logging.getLogger("postroom")

LEAST = 0.1
"""Seconds that a loop may always be busy, however short the leases are."""
MOST_NAMES = 3
"""Messages of a batch that a record names."""
ADVICE = (
    "leases are not renewed, and nothing else runs in this event loop. Write the handler as a plain function (def), "
    "which runs in a thread, or call what blocks by asyncio.to_thread"
)


class Call(NamedTuple):
    """A handler that is being called, as found on a stack."""

    where: str
    handler: Handler
    messages: Sequence[Message[Any]]
    frames: list[FrameType]
    """From the handler inwards."""


class Watchdog:
    """Watches the event loop in which it is started."""

    def __init__(self, store_name: str, pumps: Callable[[], Sequence[Pump]]) -> None:
        """`pumps`: those that run in the loop. It is called in another thread."""
        self._where = escape(f"store={store_name}")
        self.pumps = pumps
        self._watch: _Watch | None = None

    def start(self) -> None:
        """Does nothing if it watches already."""
        if self._watch is None or not self._watch.is_alive():
            self._watch = _Watch(self._where, self, asyncio.get_running_loop())
            weakref.finalize(self, self._watch.stop)
            self._watch.start()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


class _Watch(threading.Thread):
    """One run, from a start to a stop. It keeps neither the loop nor the room alive."""

    def __init__(self, where: str, watchdog: Watchdog, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name=f"postroom watchdog {where}", daemon=True)
        self._where = where
        self._watchdog = weakref.ref(watchdog)
        self._loop = weakref.ref(loop)
        self._loop_thread = threading.get_ident()
        self._lease = 0.0
        self._stopped = threading.Event()
        self._answered = threading.Event()

    def stop(self) -> None:
        """Not waited for: it is called in the loop for which the thread may be waiting."""
        self._stopped.set()
        self._answered.set()

    def run(self) -> None:
        while not self._stopped.wait(self._pause()):
            if not self._ask():
                return  # the loop has been closed
            limit = max(self._lease / 2, LEAST)
            asked = time.monotonic()
            # In two steps: a process that was suspended must not be reported when it goes on.
            if self._answered.wait(limit * 0.75) or self._answered.wait(limit * 0.25):
                continue
            reported = self._report(time.monotonic() - asked)
            while not self._answered.wait(limit):
                if self._is_closed():
                    return
            if reported and not self._stopped.is_set():
                _log.info("%s the event loop runs again after %.1f s", self._where, time.monotonic() - asked)

    def _pause(self) -> float:
        """A quarter of the shortest lease: the report comes before the lease ends."""
        leases = [pump.box.work.lease.total_seconds() for pump in self._pumps()]
        self._lease = min(leases, default=self._lease)
        return max(self._lease / 4, LEAST / 2)

    def _ask(self) -> bool:
        self._answered.clear()
        if self._stopped.is_set():
            return False
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return False
        return loop is not None

    def _answer(self) -> None:
        self._loop_thread = threading.get_ident()
        self._answered.set()

    def _is_blocked(self) -> bool:
        """A loop that does not run at all, as between two `run_until_complete`, is not blocked."""
        loop = self._loop()
        return loop is not None and loop.is_running() and not self._answered.is_set()

    def _is_closed(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    def _pumps(self) -> Sequence[Pump]:
        watchdog = self._watchdog()
        return () if watchdog is None else watchdog.pumps()

    def _report(self, seconds: float) -> bool:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way to another stack
        if frame is None or not self._is_blocked():
            return False
        call = find_call(frame)
        if call is not None:
            which = f"{_names(call.messages)} handler={handler_name(call.handler)}"
            at = _place(call.frames)
            _log.warning("%s %s blocks the event loop since %.1f s at %s: %s", call.where, which, seconds, at, ADVICE)
        elif any(pump.in_hand for pump in self._pumps()):
            message = (
                "%s the event loop is blocked since %.1f s by code outside of handlers, at %s: leases are not renewed"
            )
            _log.warning(message, self._where, seconds, _place([frame]))
        else:
            return False
        return True


def find_call(frame: FrameType | None) -> Call | None:
    """The call of a handler on a stack, from its innermost frame."""
    inner: list[FrameType] = []
    while frame is not None:
        found: dict[str, Any]
        if frame.f_code is _ONE_BY_ONE:
            found = dict(frame.f_locals)
            return Call(found["self"].where, found["handler"], [found["message"]], inner[::-1] or [frame])
        if frame.f_code is _ANY:
            found = dict(frame.f_locals)
            return Call(found["self"].where, found["handler"], found["messages"], inner[::-1] or [frame])
        inner.append(frame)
        frame = frame.f_back
    return None


# Where handlers are called. The names of their variables are used above.
_ONE_BY_ONE = Pump._do_each.__code__  # noqa: SLF001
_ANY = Executor._answer.__code__  # noqa: SLF001


def _names(messages: Sequence[Message[Any]]) -> str:
    named = ", ".join(map(name, messages[:MOST_NAMES]))
    more = len(messages) - MOST_NAMES
    return f"{named} and {more} more" if more > 0 else named


def _place(frames: list[FrameType]) -> str:
    """The line of the handler; and the innermost one, if that is another."""
    outer, inner = _line(frames[0]), _line(frames[-1])
    return outer if outer == inner else f"{outer}, in {inner}"


def _line(frame: FrameType) -> str:
    return escape(f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})")
