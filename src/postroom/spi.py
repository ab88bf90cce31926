"""For store authors: the protocols that a store implements. Public and stable.

A store is any object with the verbs of `Store`; there is no base class. The other protocols are optional: a store that
has the verbs of one gets what it offers, and nothing has to be registered.

* Verbs take and return lists. Item *i* of a result belongs to item *i* of the argument.
* A duplicate or a lost lease is a *result*, never an exception.
* Every verb is atomic: all of it happens, or nothing.
* A verb changes and returns only messages of its `box`, which is identified by `box.key`.
* Verbs are coroutines. A store for sync code has the same verbs as plain methods.
* `tx` is the caller's open transaction. The verb runs inside it and never commits it. With `tx=None` the verb commits
  before it returns. A store without `features.transactional` always gets None.

A verb raises what its database driver raises; `ErrorClassifier` says which of these errors a retry may cure.

Run `postroom.testing.conformance` against your store: see the store authors' guide in the documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol, runtime_checkable
from uuid import UUID

from postroom._kernel.clock import Clock, SystemClock
from postroom._kernel.guard import NO_END, Begin, BeginDecision, BeginStatus, Begun, decide_begin
from postroom._kernel.joins import Join, JoinDraft, JoinFilter, JoinStatus, JoinStep, JoinWait, StepStatus
from postroom._kernel.line import LineMember, claimable_front, is_in_line, without_suspects
from postroom._kernel.message import (
    Claim,
    Draft,
    Format,
    Key,
    KeyStatus,
    Message,
    Receipt,
    ReceiptStatus,
    StoredMessage,
)
from postroom._kernel.policy import Box, Delivery, Order, Retention
from postroom._kernel.queries import Attendance, ClaimRequest, Counts, Filter, Purge, Reaped
from postroom._kernel.settlement import NamedTarget, Result, Settled, Settlement
from postroom._kernel.states import TRANSITIONS, Ending, State
from postroom._spi.guard import GuardStore
from postroom._spi.joins import JoinStore, Step
from postroom._spi.verbs import Tx, Verb, declared_verbs, reads

__all__ = [
    # What a store implements.
    "Store",
    "QueueStore",
    "KeyStore",
    "Features",
    # What a store may implement.
    "Attendant",
    "BoxLister",
    "ErrorClassifier",
    "Exchanger",
    "GuardStore",
    "JoinStore",
    "Migrator",
    "OrderRecorder",
    "Transactor",
    "Waker",
    # The verbs of all protocols, for code that wraps stores.
    "VERBS",
    "Verb",
    # Values.
    "Attendance",
    "Begin",
    "BeginDecision",
    "BeginStatus",
    "Begun",
    "Box",
    "Claim",
    "ClaimRequest",
    "Clock",
    "Counts",
    "Delivery",
    "Draft",
    "Ending",
    "Filter",
    "Format",
    "Join",
    "JoinDraft",
    "JoinFilter",
    "JoinStatus",
    "JoinStep",
    "JoinWait",
    "Key",
    "KeyStatus",
    "Mark",
    "Message",
    "NO_END",
    "NamedTarget",
    "Order",
    "Purge",
    "Reaped",
    "Receipt",
    "ReceiptStatus",
    "Result",
    "Retention",
    "Settled",
    "Settlement",
    "State",
    "Step",
    "StepStatus",
    "StoredMessage",
    "SystemClock",
    "Tx",
    # Rules.
    "TRANSITIONS",
    "LineMember",
    "claimable_front",
    "decide_begin",
    "is_in_line",
    "without_suspects",
]

Mark = Literal["processing", "processed", "dead", "skipped"]
"""The target of `KeyStore.mark`. `skipped`: a dead letter stays dead, but no longer blocks its FIFO group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a store offers. A box that needs more than its store offers raises FeatureMissing when it is made."""

    durable: bool
    """Accepted messages survive the end of the process."""
    transactional: bool
    """The verbs that take `tx` join the caller's transaction; the store is a `Transactor`."""
    fifo: bool = True
    """Boxes may have FIFO order."""
    collapse: bool = True
    """Messages may have a collapse key."""
    concurrent: bool = False
    """Several transactions may write at the same time: a worker runs its next exchange before the last one returns."""
    notify: bool = False
    """The store is a `Waker`: a worker learns of new messages before its next poll."""
    joins: bool = False
    """The store is a `JoinStore`, and `put` makes the message of a draft with `join` a step."""
    guard: bool = False
    """The store is a `GuardStore`, and `settle` stores the result of a settlement."""
    claims: bool = True
    """Boxes have a work queue. False: there are guards, and inboxes that accept messages; other processes claim."""


class QueueStore(Protocol):
    """The work queue."""

    async def put(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> list[Receipt]:
        """Stores new messages, in the order of `drafts`.

        For each draft: looks up its key, applies the box's rules for a known key, inserts a new message, and ends the
        waiting messages of `box` that its collapse key replaces. `tx` is the caller's transaction. Returns a receipt
        for each draft.
        """

    async def claim(self, box: Box, request: ClaimRequest, *, tx: Tx = None) -> list[StoredMessage]:
        """Leases messages that are due and not leased, at most `request.limit` of `box`.

        A claim sets the owner, the end of the lease and a fence that is higher than all earlier fences of the message.
        In a FIFO box, `claimable_front` decides which members of a group may be claimed. `tx` is the caller's
        transaction. Returns the claimed messages.
        """

    async def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Tx = None) -> Settled:
        """Applies outcomes to claimed messages of `box` whose owner and fence are still those of the settlement.

        In a FIFO group, an outcome other than success releases the members that the same owner has claimed behind it.
        `tx` is the caller's transaction. Returns True for each of the `settlements` that was applied. Raises
        AmbiguousMessageId if a settlement names a message without its source and several sources have it.
        """

    async def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Settled:
        """Moves the end of leases of `box` to `lease` from now, where owner and fence are still those of the claim.

        Returns True for each of the `claims` whose lease was moved.
        """

    async def reap(self, box: Box, limit: int) -> Reaped:
        """Releases expired leases of `box` and makes messages past their `expires` dead: at most `limit` of each.

        Returns the number of both.
        """

    async def replay(self, box: Box, which: Filter, *, tx: Tx = None) -> list[Key]:
        """Makes the dead messages of `box` that match `which` wait again, at their old position, with new budgets.

        The fence stays, so that an old claim stays invalid. `tx` is the caller's transaction. Returns the keys of the
        messages, in id order.
        """

    async def purge(self, box: Box, purge: Purge) -> int:
        """Deletes one batch of done, dead or seen messages of `box`, the oldest first, as `purge` says.

        Returns how many messages it deleted.
        """

    @reads
    async def find(self, box: Box, which: Filter) -> list[StoredMessage]:
        """Returns the messages of `box` that match `which`, in id order."""

    @reads
    async def counts(self, box: Box) -> Counts:
        """Returns the number of messages of `box` in each state, zeros included."""


class KeyStore(Protocol):
    """Keys and their messages, without a claim."""

    async def record(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> list[KeyStatus]:
        """Records that the keys of `drafts` were seen in `box`. It reads only the key and the hash of a draft.

        `tx` is the caller's transaction. Returns, for each draft, the status of its key before the call.
        """

    async def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Tx = None
    ) -> list[bool]:
        """Moves the messages of `box` with these `keys` to the state that `mark` names, and ends their leases.

        `error` is stored as the last error. `tx` is the caller's transaction. Returns True for each key whose message
        was changed.
        """

    async def cancel(self, box: Box, which: Filter, *, tx: Tx = None) -> list[Key]:
        """Ends the waiting messages of `box` that match `which` as done, with the ending `cancelled`.

        Does not change claimed messages. The other members of a FIFO group can be claimed as before. `tx` is the
        caller's transaction. Returns the keys of the cancelled messages, in id order.
        """


class Store(QueueStore, KeyStore, Protocol):
    """What a room needs from a store."""

    name: str
    """Identifies the store in logs. It contains no credentials."""
    features: Features

    async def close(self) -> None:
        """Closes the connections of the store. A second call does nothing."""


@runtime_checkable
class Exchanger(Protocol):
    """Stores that settle and claim in one transaction. For other stores, a worker calls `settle` and then `claim`."""

    async def exchange(
        self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest
    ) -> tuple[Settled, list[StoredMessage]]:
        """Applies `settlements` to `box` as `settle` does, then claims for `request` as `claim` does, atomically.

        Returns the results of both.
        """


@runtime_checkable
class Transactor(Protocol):
    """Stores with `features.transactional`: they open the transactions in which transactional handlers run.

    A store may have `tx_classes`, the class names of these transactions, such as `("psycopg.AsyncConnection",)`.
    A handler whose `tx` is annotated with another class is then refused when it is registered.

    A store may have `addresses`, a frozenset of texts that identify its database. Two stores with an address in common
    are on the same database: a handler in a transaction of one cannot write to the other without `tx`. Without
    `addresses`, stores are compared by `name`.
    """

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        """Returns a context manager that begins a transaction, yields what is passed as `tx`, and ends it.

        It commits at the end of the block, and rolls back if the block raises.
        """


@runtime_checkable
class Waker(Protocol):
    """Stores with `features.notify`: they receive notifications from processes that write.

    Notifications only save time. A worker also polls, so a lost notification delays a message but does not lose it.
    """

    async def wait(self) -> frozenset[str]:
        """Waits until there may be messages to claim, and returns the keys of their boxes.

        An empty set means any box: the connection is new, so notifications may have been missed. Raises the driver's
        error if the connection fails; the worker then calls it again after a pause.
        """


@runtime_checkable
class ErrorClassifier(Protocol):
    """Stores that know which of their errors are transient. Verbs that fail with such an error are retried."""

    def is_transient(self, error: BaseException) -> bool:
        """Returns True if the same call may succeed a moment later: a deadlock, a busy database, a lost connection.

        The call that raised `error` has changed nothing, or, if the connection was lost during the commit, its result
        is unknown. A retry is harmless in both cases; it may find the messages that the first call has stored.
        """


@runtime_checkable
class BoxLister(Protocol):
    """Stores that list their boxes, for tools that inspect a database without the program that uses it."""

    @reads
    async def boxes(self) -> list[str]:
        """Returns the keys of the boxes that have messages, sorted. It may include boxes that are empty now."""


@runtime_checkable
class OrderRecorder(Protocol):
    """Stores that record the order of each box. A process that opens a box with another order is then refused."""

    async def record_order(self, box: Box, *, change: bool = False, tx: Tx = None) -> bool | None:
        """Records the order of `box` if none is recorded, or if `change` is True.

        With `tx` and without `change` it only reads: the caller's transaction may last long, and other processes must
        not wait for its row lock. Returns the recorded order: True for FIFO, False for none; or None if the box has no
        record yet.
        """


@runtime_checkable
class Attendant(Protocol):
    """Stores that say when their next messages are due, for a room with many stores: it need not poll each of them.

    The *soft lease* of a store says which process looks at it. It only saves statements: any process may claim.
    """

    async def attend(self, boxes: Sequence[str], process: UUID, lease: timedelta) -> Attendance:
        """Takes the soft lease of the store for `process`, unless another process has it, and reads what is due.

        `lease` is the term of the soft lease. A lease is not extended before it has ended, so that the stores are
        shared anew. A `lease` of zero gives the soft lease back, if `process` has it.

        `boxes` are keys of boxes. A message is due from the time at which it can be claimed, a claimed one from the end
        of its lease. Messages that are seen, done or dead, and those that sleep behind the first of their FIFO group,
        are not. The times are a hint: a claim may find nothing. Waits for no row lock.
        """


@runtime_checkable
class Migrator(Protocol):
    """Stores with a schema: tables that have to be created before the first use."""

    async def migrate(self) -> list[int]:
        """Brings the schema up to date and returns the versions that it applied.

        It may be repeated, and several processes may call it at the same time.
        """

    @reads
    async def schema_version(self) -> int:
        """Returns the version of the schema in the database, 0 if there is none."""

    def schema_script(self) -> str:
        """Returns the SQL text that `migrate` runs on an empty database."""


VERBS = declared_verbs(
    QueueStore,
    KeyStore,
    Store,
    JoinStore,
    GuardStore,
    Exchanger,
    Transactor,
    Waker,
    ErrorClassifier,
    BoxLister,
    OrderRecorder,
    Attendant,
    Migrator,
)
"""Every verb that a store may have, by name. A wrapper forwards those that its store has."""
