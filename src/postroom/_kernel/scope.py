"""Transactions that are open around the running code: those of handlers, and those of drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

UNNAMED = "the given pool"
"""In the name of a store: replaces the address of the database if only the user's pool knows it."""


class Entry(Generic[T]):
    """An open scope."""

    __slots__ = ("is_open", "owner", "refusal")

    def __init__(self, owner: T) -> None:
        self.owner = owner
        self.is_open = True
        self.refusal: Exception | None = None
        """The error of the first write that was refused inside. The code inside may have caught it."""

    def note(self, refusal: Exception) -> None:
        self.refusal = self.refusal or refusal


class Scope(Generic[T]):
    """The open scope of a task, and of the tasks and threads that it starts.

    A task that is started inside keeps a copy of the context while it runs. So the end of the scope is stored in the
    entry, which the copies share, and not only in the context.
    """

    def __init__(self, name: str) -> None:
        self._entry: ContextVar[Entry[T] | None] = ContextVar(name, default=None)

    @contextmanager
    def opened(self, owner: T) -> Iterator[Entry[T]]:
        entry = Entry(owner)
        token = self._entry.set(entry)
        try:
            yield entry
        finally:
            entry.is_open = False
            self._entry.reset(token)

    def entry(self) -> Entry[T] | None:
        entry = self._entry.get()
        return entry if entry is not None and entry.is_open else None

    def owner(self) -> T | None:
        entry = self.entry()
        return None if entry is None else entry.owner
