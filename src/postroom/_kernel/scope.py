"""What is open around the code that runs: a transaction of a handler, or of a driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

UNNAMED = "the given pool"
"""Stands for the place in the name of a store whose database is known to the user's pool only."""


class Entry(Generic[T]):
    """One that was opened."""

    __slots__ = ("is_open", "owner", "refusal")

    def __init__(self, owner: T) -> None:
        self.owner = owner
        self.is_open = True
        self.refusal: Exception | None = None
        """The error of the first write that was refused inside, for the case that the code there catches it."""

    def note(self, refusal: Exception) -> None:
        self.refusal = self.refusal or refusal


class Scope(Generic[T]):
    """The owner of what is open, for this task, and for the tasks and threads that it starts.

    A task that is started inside keeps its copy of the context for as long as it runs. So the end is noted in the
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


handling: Final[Scope[Any]] = Scope("postroom_handling")
"""The store of the transaction in which a transactional handler runs."""


def are_same(store: Any, other: Any) -> bool:
    """Whether both are on one database: a room for sync code has another store than one for async code."""
    return store is other or not store.addresses.isdisjoint(other.addresses)
