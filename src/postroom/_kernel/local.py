"""Values that belong to one process or to one event loop: connections, locks, tasks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from postroom.errors import PoolForked

T = TypeVar("T")


class Process:
    """Identifies a process. After a fork, the child has another object, even if it has the pid of an ended process."""

    current: Process


def _begin() -> None:
    Process.current = Process()


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)


class PerProcess(Generic[T]):
    """One value for each process, made when it is first needed there.

    A value that a child inherits by a fork is kept and never used. Its sockets are those of the parent: to close them,
    or to let them be collected, could end the parent's connections.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[Process | _LoopKey, T] = {}

    def _here(self) -> Process | _LoopKey:
        return Process.current

    def _forget_closed(self) -> None:
        """Drops values that are of no use any more. Called before a value is made."""

    def get(self) -> T:
        return self.enter()[0]

    def enter(self) -> tuple[T, bool]:
        """Returns the value, and True if this call made it."""
        here = self._here()
        found = self._made.get(here)
        if found is not None:
            return found, False
        self._forget_closed()
        # Without a lock, since a fork could copy a lock that is held. If two threads race, one value is thrown away.
        made = self._make()
        kept = self._made.setdefault(here, made)
        return kept, kept is made

    def pop(self) -> T | None:
        """Removes and returns the value, if there is one. The next `get` makes another."""
        return self._made.pop(self._here(), None)


class _LoopKey(NamedTuple):
    process: Process
    loop: asyncio.AbstractEventLoop


class PerLoop(PerProcess[T]):
    """One value for each event loop of each process. Values of closed loops are dropped."""

    def _here(self) -> Process | _LoopKey:
        return _LoopKey(Process.current, asyncio.get_running_loop())

    def _forget_closed(self) -> None:
        for key in list(self._made):
            if isinstance(key, _LoopKey) and key.process is Process.current and key.loop.is_closed():
                self._made.pop(key, None)

    def everywhere(self) -> list[T]:
        """Returns the values of all loops of this process that are not closed. Needs no running loop."""
        return [
            value
            for key, value in list(self._made.items())
            if isinstance(key, _LoopKey) and key.process is Process.current and not key.loop.is_closed()
        ]


class UserPool(Generic[T]):
    """A pool of the user. After a fork it is refused: it would share its connections with the parent process."""

    def __init__(self, pool: T, advice: str = "make the pool and the room after the fork") -> None:
        self._pool = pool
        self._advice = advice
        self._used: object = None
        self._process: Process | None = None

    def get(self, below: object = None) -> T:
        """Returns the pool. `below`: the object that has its connections, if the user may replace that object."""
        used = self._pool if below is None else below
        if self._used is not used:
            self._used, self._process = used, Process.current
        elif self._process is not Process.current:
            raise PoolForked(f"the pool of this room was used before a fork: {self._advice}")
        return self._pool
