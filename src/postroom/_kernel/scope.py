"""What is open around the code that runs: a transaction of a handler, or of a driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

UNNAMED = "the given pool"
"""Stands for the place in the name of a store whose database is known to the user's pool only."""


class _Entry(Generic[T]):
    __slots__ = ("is_open", "owner")

    def __init__(self, owner: T) -> None:
        self.owner = owner
        self.is_open = True


class Scope(Generic[T]):
    """The owner of what is open, for this task, and for the tasks and threads that it starts.

    A task that is started inside keeps its copy of the context for as long as it runs. So the end is noted in the
    entry, which the copies share, and not only in the context.
    """

    def __init__(self, name: str) -> None:
        self._entry: ContextVar[_Entry[T] | None] = ContextVar(name, default=None)

    @contextmanager
    def opened(self, owner: T) -> Iterator[None]:
        entry = _Entry(owner)
        token = self._entry.set(entry)
        try:
            yield
        finally:
            entry.is_open = False
            self._entry.reset(token)

    def owner(self) -> T | None:
        entry = self._entry.get()
        return entry.owner if entry is not None and entry.is_open else None
