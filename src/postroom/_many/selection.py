"""Selection: which store has the next batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import NamedTuple

from postroom._boxes import check
from postroom.errors import ArgumentTypeError, ArgumentValueError

QUANTUM_SECONDS = 0.02
"""How long the handlers of one batch should run, if the selection is fair."""


class Batch(NamedTuple):
    """A claim of a worker in one of its stores, and how long handlers ran since the claim before."""

    store: str
    claimed: int
    """How many messages the claim returned; 0: the store has none that are due."""
    seconds: float
    """The time of handler calls since the last batch of this store."""
    weight: float = 1.0
    """The `weight` of the store's configuration."""


class Selection(ABC):
    """Decides which store has the next batch. Each box of a room has an object of its class, or a copy of it."""

    overlap: int = 0
    """How many stores may be visited at the same time, besides one for each concurrent handler call."""

    @abstractmethod
    def select(self, ready: Collection[str]) -> str | None:
        """Returns a store of `ready`; None: none now.

        Args:
            ready: the stores that may have messages, and that no worker of this box is claiming from. It is a ring: the
                store that waits the longest comes first, a store that has just had a batch comes last. Never empty.

        Returns:
            The identifier of a store. Called before each batch.
        """

    def ended(self, batch: Batch) -> None:  # noqa: B027 - a strategy may ignore it
        """Called after each claim.

        Args:
            batch: the store, the number of messages, and the time of handlers.
        """

    def limit(self, store: str, batch_size: int) -> int:
        """Returns how many messages the next claim in a store may take.

        Args:
            store: the identifier of the store.
            batch_size: the `batch_size` of the box.

        Returns:
            A number from 1 to `batch_size`.
        """
        return batch_size


class RoundRobin(Selection):
    """All stores in order, one batch each."""

    def select(self, ready: Collection[str]) -> str | None:
        """Returns the first store of `ready`."""
        return next(iter(ready))


class DrainFirst(Selection):
    """Stays with a store until it has no messages, then goes on to the next.

    Args:
        max_batches: goes on after so many batches, so that a busy store does not starve the others. None: no limit.
    """

    def __init__(self, max_batches: int | None = None) -> None:
        self._max_batches = None if max_batches is None else check.count("max_batches", max_batches)
        self._current: str | None = None
        self._batches = 0

    def select(self, ready: Collection[str]) -> str | None:
        """Returns the store of the last batch if it is in `ready`, otherwise the first."""
        if self._current not in ready:
            self._current, self._batches = next(iter(ready)), 0
        return self._current

    def ended(self, batch: Batch) -> None:
        """Leaves the store if `batch` found nothing, or was the last of `max_batches`."""
        if batch.store != self._current:
            return
        self._batches += 1
        if not batch.claimed or self._batches == self._max_batches:
            self._current = None


class Fair(Selection):
    """The store whose handlers have run for the shortest time, divided by its weight.

    A batch is as large as handlers do in 20 ms, so that a quiet store does not wait for a large batch of a busy one.
    """

    overlap = 4

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        """Handler seconds divided by weight, of the stores that have messages."""
        self._per_message = 0.0
        """The mean time of a handler call."""

    def select(self, ready: Collection[str]) -> str | None:
        """Returns the store of `ready` with the least weighted handler time."""
        spent = self._spent
        if len(spent) < len(ready) or not all(store in spent for store in ready):
            # A store that was idle does not save up time.
            least = min((spent[store] for store in ready if store in spent), default=0.0)
            for store in ready:
                spent.setdefault(store, least)
        return min(ready, key=spent.__getitem__)

    def ended(self, batch: Batch) -> None:
        """Adds the handler time of `batch` to its store."""
        if not batch.claimed:
            self._spent.pop(batch.store, None)
            return
        least = min(self._spent.values(), default=0.0)
        spent = batch.seconds / batch.weight
        self._spent[batch.store] = self._spent.get(batch.store, least) + spent
        if batch.seconds:
            share = batch.seconds / batch.claimed
            self._per_message = share if not self._per_message else 0.8 * self._per_message + 0.2 * share

    def limit(self, store: str, batch_size: int) -> int:
        """Returns how many messages handlers do in 20 ms, at most `batch_size`: the same for each `store`."""
        if not self._per_message:
            return batch_size
        return max(1, min(batch_size, round(QUANTUM_SECONDS / self._per_message)))


NAMES: Mapping[str, type[Selection]] = {"round-robin": RoundRobin, "drain-first": DrainFirst, "fair": Fair}


def selection_of(given: object) -> Selection:
    """Returns the strategy of this name, or the given object."""
    if isinstance(given, Selection):
        return given
    if not isinstance(given, str):
        raise ArgumentTypeError(
            f"selection must be one of {', '.join(map(repr, NAMES))}, or a postroom.Selection, not a "
            f"{type(given).__name__}"
        )
    if given not in NAMES:
        raise ArgumentValueError(f"there is no selection {given!r}; there are {', '.join(map(repr, NAMES))}")
    return NAMES[given]()
