"""For store authors: the protocols that a store implements. Public and stable.

A store is any object with these verbs; there is no base class. Verbs take and return lists, in the same order. A
duplicate or a lost lease is a *result*, never an exception. Every verb is atomic: all of it happens, or nothing.

A store's methods are coroutines; a store for sync code has the same verbs as plain methods. Those of `QueueStore` and
`KeyStore` that write take `tx`, the caller's open transaction. A store without `features.transactional` is never
given one.

Run `postroom.testing.conformance` against your store: see the store authors' guide in the documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from postroom._kernel.clock import Clock, SystemClock
from postroom._kernel.line import EARLY, claimable_front, is_in_line, without_suspects
from postroom._kernel.message import (
    Claim,
    Draft,
    Format,
    Key,
    Message,
    Receipt,
    ReceiptStatus,
    Sighting,
    StoredMessage,
)
from postroom._kernel.policy import Box, Delivery, Keeping, Order
from postroom._kernel.queries import Ask, Counts, Filter, Purge, Reaped
from postroom._kernel.settlement import Held, Settled, Settlement
from postroom._kernel.states import TRANSITIONS, Ending, State

__all__ = [
    "EARLY",
    "TRANSITIONS",
    "Ask",
    "Box",
    "Claim",
    "Clock",
    "Counts",
    "Delivery",
    "Directory",
    "Draft",
    "Ending",
    "Features",
    "Filter",
    "Format",
    "Held",
    "Keeping",
    "Key",
    "KeyStore",
    "Mark",
    "Message",
    "Order",
    "Ordered",
    "Purge",
    "QueueStore",
    "Reaped",
    "Receipt",
    "ReceiptStatus",
    "Schema",
    "Settled",
    "Settlement",
    "Sighting",
    "State",
    "Store",
    "StoredMessage",
    "SystemClock",
    "Transactor",
    "Transient",
    "Turner",
    "Waker",
    "claimable_front",
    "is_in_line",
    "without_suspects",
]

Mark = Literal["processing", "processed", "dead", "skipped"]
"""`skipped`: a dead letter no longer holds up its group; it stays dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a store offers, declared. Asking for what is not offered fails when a box is configured."""

    durable: bool
    """What was accepted survives the process."""
    transactional: bool
    """Writes can join the caller's transaction."""
    fifo: bool = True
    collapse: bool = True
    concurrent: bool = False
    """Writers work side by side: a worker need not wait for one turn before the next."""
    notify: bool = False
    """It is a `Waker`: workers need not wait for the next poll."""


class QueueStore(Protocol):
    """The work queue."""

    async def put(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> list[Receipt]:
        """Decide dedup, collapse and insert for each draft, in order."""

    async def claim(self, box: Box, ask: Ask, *, tx: Any = None) -> list[StoredMessage]:
        """Lease what is due and free: never more than asked, never what another lease holds."""

    async def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Any = None) -> Settled:
        """Apply outcomes where owner and fence still match. Non-successes end a FIFO group's batch."""

    async def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Settled:
        """Move the end of leases that still hold."""

    async def reap(self, box: Box, limit: int) -> Reaped:
        """Free leases that have passed and bury messages past `expires`: all of them, but at most `limit` of each."""

    async def replay(self, box: Box, which: Filter, *, tx: Any = None) -> list[Key]:
        """Make dead messages wait again, in their old place, with new budgets and the same fence."""

    async def purge(self, box: Box, purge: Purge) -> int:
        """Delete one batch of done, dead or seen messages, the oldest first; answers how many."""

    async def find(self, box: Box, which: Filter) -> list[StoredMessage]:
        """Messages that fit, in id order."""

    async def counts(self, box: Box) -> Counts:
        """How many messages stand in each state."""


class KeyStore(Protocol):
    """What is known of a key, with or without a message."""

    async def record(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> list[Sighting]:
        """Note that keys were seen, and tell what was known of them. Of a draft only the key and the hash count."""

    async def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Any = None
    ) -> list[bool]:
        """Move messages without a claim; a lease on them ends. True where something changed."""

    async def cancel(self, box: Box, which: Filter, *, tx: Any = None) -> list[Key]:
        """End waiting messages that fit as done, with the ending `cancelled`; returns their keys, in id order.

        A message that is claimed is left alone. The rest of a FIFO group goes on.
        """


@runtime_checkable
class Turner(Protocol):
    """Stores that can settle and claim in one transaction. Without it, a worker does one after the other."""

    async def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> tuple[Settled, list[StoredMessage]]: ...


@runtime_checkable
class Transactor(Protocol):
    """Stores with `features.transactional`: they open transactions for handlers.

    A store may have `tx_classes`, the names of what a handler may expect: `("psycopg.AsyncConnection",)`. A handler
    that is annotated with another class is then refused when it is registered.

    A store may have `addresses`, a frozenset of texts. Stores that have one in common are on the same database: a
    handler in a transaction of one cannot write to the other without `tx`. Without `addresses`, the name counts.
    """

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction that can be passed as `tx`: committed at the end, rolled back on an error."""


@runtime_checkable
class Waker(Protocol):
    """Stores with `features.notify`: they hear what other processes have written. A hint, never the truth."""

    async def wait(self) -> frozenset[str]:
        """Wait until there may be work; answers the keys of its boxes. Empty is any box: after a new beginning, when
        something may have been missed. Raises where it cannot hear; then it is called again, a while later."""


@runtime_checkable
class Transient(Protocol):
    """Stores that can tell errors that pass by themselves from those that do not."""

    def is_transient(self, error: BaseException) -> bool:
        """Whether the same call may well succeed a moment later. It has changed nothing; or, where the answer was lost,
        nobody knows: then to repeat it is harmless, but it may find its own work there, and say so."""


@runtime_checkable
class Directory(Protocol):
    """Stores that know which boxes they have: for people who look at a database without the program that uses it."""

    async def boxes(self) -> list[str]:
        """The keys of the boxes that have messages, in order. A box that is empty now may be among them."""


@runtime_checkable
class Ordered(Protocol):
    """Stores that record the order of each box, so that a process that opens a box in another order is refused."""

    async def record_order(self, box: Box, *, change: bool = False, tx: Any = None) -> bool | None:
        """Record the order of the box if none is recorded, or if `change`; returns whether it is recorded as FIFO.

        With `tx` and without `change` it only reads, and returns None if no order is recorded: the caller's transaction
        may last, and others must not wait for it.
        """


@runtime_checkable
class Schema(Protocol):
    """Stores whose tables must be made."""

    async def migrate(self) -> list[int]:
        """Bring the tables up to date; answers the versions that were applied. Safe to repeat and to race."""

    async def schema_version(self) -> int:
        """The version in the database; 0 where there is none."""

    def schema_script(self) -> str:
        """What `migrate` would run on an empty database, as text."""


class Store(QueueStore, KeyStore, Protocol):
    """What a room needs of a store."""

    name: str
    """Tells stores apart in logs; contains no credential."""
    features: Features

    async def close(self) -> None:
        """Give back connections. Closing twice is fine."""
