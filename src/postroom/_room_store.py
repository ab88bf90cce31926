"""The store of a room, as boxes and workers see it.

`postroom.spi` is the contract with store authors. A room wraps the store that it is given (`_stores.for_room`), which
adds the members that this module declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from postroom._kernel.observer import Event
from postroom._kernel.scope import Scope
from postroom._kernel.texts import ErrorTexts
from postroom._spi.verbs import declared_verbs
from postroom.spi import VERBS, Box, ErrorClassifier, Exchanger, GuardStore, Store, Transactor, Waker


class OrderChecker(Protocol):
    """Compares the order of a box with the one that its database records."""

    async def check_order(self, box: Box) -> None:
        """Raises OrderMismatch if another order is recorded for `box`. Records the order if none is."""


class Observable(Protocol):
    """Passes events to observers."""

    def is_observed(self, verb: str) -> bool:
        """Returns True if an observer receives events of this verb."""

    def emit(self, event: Event) -> None:
        """Passes an event to the observers of its verb. Logs what an observer raises."""


class Addressed(Protocol):
    """Knows its database."""

    addresses: frozenset[str]
    """Texts that identify the database. Stores with one in common are on the same database."""


class RoomStore(Store, GuardStore, Exchanger, ErrorClassifier, OrderChecker, Observable, Addressed, Protocol):
    """A store with the members that a room adds.

    It has `exchange`, also if its database cannot settle and claim in one transaction. It has `begin` only with
    `features.guard`. It has the verbs of the other
    optional protocols only if the store inside has them: `isinstance(store, Migrator)` is the test.
    """

    tx_classes: Sequence[str]
    """The class names of the transactions that handlers get, the most specific first. Empty if the store has none."""
    errors: ErrorTexts
    """Decides which text of an error is stored or logged."""


class WorkerStore(RoomStore, Transactor, Waker, Protocol):
    """The store as a worker sees it.

    It has `transaction` only with `features.transactional`, and `wait` only with `features.notify`.
    """


handling: Final[Scope[RoomStore]] = Scope("postroom_handling")
"""The store of the transaction in which a transactional handler runs."""


def on_same_database(store: Addressed, other: Addressed) -> bool:
    """Returns True if both stores are on one database. A sync and an async room have different store objects."""
    return store is other or not store.addresses.isdisjoint(other.addresses)


ROOM_VERBS = {**VERBS, **declared_verbs(OrderChecker, Observable)}
"""All verbs of a room's store, by name."""
