"""What belongs to one process, or to one event loop: a connection, a lock, a task. It is of no use anywhere else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from postroom.errors import PoolForked

T = TypeVar("T")


class Process:
    """A process. A fork begins another one, which may get the number of one that has ended, but not its object."""

    current: Process


def _begin() -> None:
    Process.current = Process()


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)


class PerProcess(Generic[T]):
    """One value for each process: made when it is first needed there.

    What came with a fork is kept, and never touched: its sockets are those of the parent, and to close them, or only
    to let them be collected, might say goodbye on them.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[Any, T] = {}

    def _here(self) -> Any:
        return Process.current

    def _forget_closed(self) -> None:
        """Before another one is made."""

    def get(self) -> T:
        return self.enter()[0]

    def enter(self) -> tuple[T, bool]:
        """The value of this place, and whether it was made by this very call."""
        here = self._here()
        found = self._made.get(here)
        if found is not None:
            return found, False
        self._forget_closed()
        # No lock, since a fork could copy one that is held. Of two threads that come at once, one makes it in vain.
        made = self._make()
        kept = self._made.setdefault(here, made)
        return kept, kept is made

    def pop(self) -> T | None:
        """Take the value of this place out, if there is one: the next call makes another."""
        return self._made.pop(self._here(), None)


class _Place(NamedTuple):
    process: Process
    loop: asyncio.AbstractEventLoop


class PerLoop(PerProcess[T]):
    """One value for each event loop, and for each process. What is left of a loop that has closed is dropped."""

    def _here(self) -> Any:
        return _Place(Process.current, asyncio.get_running_loop())

    def _forget_closed(self) -> None:
        for place in list(self._made):
            if place.process is Process.current and place.loop.is_closed():
                self._made.pop(place, None)

    def everywhere(self) -> list[T]:
        """The values of all loops of this process that have not closed. It may be called outside of any."""
        return [
            value
            for place, value in list(self._made.items())
            if place.process is Process.current and not place.loop.is_closed()
        ]


class Borrowed:
    """The user's pool, which cannot be replaced: after a fork it would share its connections with the parent."""

    def __init__(self, pool: Any, advice: str = "make the pool and the room after the fork") -> None:
        self._pool = pool
        self._advice = advice
        self._used: Any = None
        self._process: Process | None = None

    def get(self, below: Any = None) -> Any:
        """The pool. `below`: what has its connections, where that is another object, which the user may replace."""
        used = self._pool if below is None else below
        if self._used is not used:
            self._used, self._process = used, Process.current
        elif self._process is not Process.current:
            raise PoolForked(f"the pool of this room was used before a fork: {self._advice}")
        return self._pool
