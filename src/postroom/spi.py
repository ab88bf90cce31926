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

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from inspect import iscoroutinefunction
from types import FunctionType, MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable
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

Step: TypeAlias = int | Key
"""A message that is a step of a join: its id in the store, or its key."""

Tx: TypeAlias = Any
"""An open transaction of the caller, or None: a connection, a cursor or a session of a driver, of SQLAlchemy or of
Django, or what `Transactor.transaction` yields. The store checks it."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _reads(verb: FunctionT) -> FunctionT:
    """Marks a verb that changes nothing, so that a store may run it in a read-only transaction."""
    verb.__dict__["reads"] = True
    return verb


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

    @_reads
    async def find(self, box: Box, which: Filter) -> list[StoredMessage]:
        """Returns the messages of `box` that match `which`, in id order."""

    @_reads
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
class JoinStore(Protocol):
    """Stores with `features.joins`. A join and its steps belong to one box.

    A step has ended if its message is done or dead, or if `report_step` says so. A continuation is a message that is
    not claimed before its join has ended; `claim` finds this out. A join that is not there raises JoinNotFound.
    """

    async def start_join(self, box: Box, draft: JoinDraft, *, tx: Tx = None) -> None:
        """Stores a new join. A second call with the same id changes nothing. `tx` is the caller's transaction."""

    async def attach_steps(self, box: Box, join: UUID, steps: Sequence[Step], *, tx: Tx = None) -> list[bool]:
        """Makes messages of `box` steps of `join`. `tx` is the caller's transaction.

        Returns True for each of `steps` that was not a step before. Raises JoinEnded, JoinFull, or MessageNotFound if
        a message is not in this box; then nothing is attached.
        """

    async def report_step(self, box: Box, join: UUID, step: Step, *, failed: bool, tx: Tx = None) -> bool:
        """Ends a pending step of `join` in `box`, whatever becomes of its message. `tx` is the caller's transaction.

        Returns True if `step` was pending; its status is then `failed` or completed. Raises MessageNotFound if the
        message is not a step.
        """

    async def put_wait(self, box: Box, draft: Draft, wait: JoinWait, *, tx: Tx = None) -> Receipt:
        """Stores the continuation of a join as a message of `box`, unless the key of `draft` is known.

        When the join has ended, the message gets topic and payload of a follow-up of `wait` and can be claimed. Without
        a follow-up it is done with the ending `joined`, or dead if the join has failed. `tx` is the caller's
        transaction. Returns the receipt. Raises JoinEnded if the join has ended.
        """

    async def seal_join(self, box: Box, join: UUID, *, tx: Tx = None) -> bool:
        """Ends the attaching of steps to an open `join` of `box`. `tx` is the caller's transaction.

        Returns True if it was not sealed before. Raises JoinEnded if the join has ended or has `expected_steps`.
        """

    async def cancel_join(self, box: Box, join: UUID, *, tx: Tx = None) -> bool:
        """Ends `join` in `box` as cancelled, and its waiting continuation. Its steps go on. `tx` is the caller's
        transaction.

        Returns True if the join was pending.
        """

    @_reads
    async def find_joins(self, box: Box, which: JoinFilter) -> list[Join]:
        """Returns the joins of `box` that match `which`."""

    @_reads
    async def find_steps(self, box: Box, join: UUID, *, after: int = 0, limit: int = 100) -> list[JoinStep]:
        """Returns steps of `join` in `box`, in id order: at most `limit`, with ids above `after`."""


@runtime_checkable
class GuardStore(Protocol):
    """Stores with `features.guard`: they begin executions that a guard protects.

    A record of a guard is a message of a box of the kind `guard`. `settle`, `renew` and `find` do the rest.
    """

    async def begin(self, box: Box, begins: Sequence[Begin]) -> list[Begun]:
        """Begins executions: claims the records with the keys of `begins` in `box`, and inserts those that are not
        there.

        A record whose deduplication window has passed is not there. `decide_begin` is the rule for the others. A claim
        sets the owner, the end of the lease (`NO_END` for a lease of None), `last_seen`, and a fence that is higher
        than all earlier fences of the record. If two items have the same key, the first is decided first. Returns, for
        each item, the status of its key.
        """


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

    @_reads
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
        shared anew. `boxes` are keys of boxes. A message is due from the time at which it can be claimed, a claimed one
        from the end of its lease. Messages that are seen, done or dead, and those that sleep behind the first of their
        FIFO group, are not. The times are a hint: a claim may find nothing. Waits for no row lock.
        """


@runtime_checkable
class Migrator(Protocol):
    """Stores with a schema: tables that have to be created before the first use."""

    async def migrate(self) -> list[int]:
        """Brings the schema up to date and returns the versions that it applied.

        It may be repeated, and several processes may call it at the same time.
        """

    @_reads
    async def schema_version(self) -> int:
        """Returns the version of the schema in the database, 0 if there is none."""

    def schema_script(self) -> str:
        """Returns the SQL text that `migrate` runs on an empty database."""


class Verb(NamedTuple):
    """A method of a store, as its protocol declares it."""

    name: str
    protocol: type
    """The protocol that declares it."""
    parameters: tuple[str, ...]
    """The names of its parameters, without `self`."""
    is_async: bool
    """Stores for async code have it as a coroutine function. The others are plain methods in all stores."""
    reads: bool
    """It changes nothing."""

    @property
    def takes_box(self) -> bool:
        """It works on one box, its first argument."""
        return self.parameters[:1] == ("box",)

    @property
    def takes_tx(self) -> bool:
        """It can run in the caller's transaction."""
        return "tx" in self.parameters


def declared_verbs(*protocols: type) -> Mapping[str, Verb]:
    """Returns the public methods that these protocols declare, by name."""
    verbs: dict[str, Verb] = {}
    for protocol in protocols:
        for name, function in vars(protocol).items():
            if isinstance(function, FunctionType) and not name.startswith("_"):
                code = function.__code__
                parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
                reads = getattr(function, "reads", False)
                verbs[name] = Verb(name, protocol, parameters, iscoroutinefunction(function), reads)
    return MappingProxyType(verbs)


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
