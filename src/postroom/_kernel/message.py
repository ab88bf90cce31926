"""Messages: what is handed in (Draft), what is handed out (Message), and the answers between."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple
from uuid import UUID

from postroom._kernel.states import Ending, State

if TYPE_CHECKING:
    # A bare `Message` has any payload. Only type checkers know such defaults before Python 3.13.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P")

Format = Literal["json", "text", "bytes"]
OnConflict = Literal["update", "keep", "reject"]
OnDuplicate = Literal["update", "reject", "raise"]


class Key(NamedTuple):
    """What deduplicates."""

    source: str
    message_id: str


class Claim(NamedTuple):
    """The proof of a lease. `fence` grows with every claim of the message, so that an old proof proves nothing."""

    id: int
    owner: UUID
    fence: int
    until: datetime


class Lease:
    """Whether a claim still holds, as far as its worker knows. Shared with the handler while it works."""

    __slots__ = ("claim", "ends", "lost")

    def __init__(self, claim: Claim, ends: float) -> None:
        self.claim = claim
        """What proves it now: a worker that claims what it has in hand goes on under the newer claim."""
        self.ends = ends
        """By the clock of the worker's event loop: not later than in the store."""
        self.lost = False


class Draft(NamedTuple):
    """A message on its way into a store. Already checked and encoded: a store trusts it."""

    source: str
    message_id: str
    topic: str = ""
    payload: str | bytes = ""
    format: Format = "text"
    headers: Mapping[str, str] | None = None
    correlation_id: str | None = None
    group: str | None = None
    collapse_key: str | None = None
    hash: bytes | None = None
    hash_algorithm: str = "sha256"
    due: datetime | None = None
    expires: datetime | None = None
    lifetime: timedelta | None = None
    """Counted from the store's now, where there is no `expires`."""
    received_at: datetime | None = None
    on_conflict: OnConflict = "update"
    revive_dead: bool = False
    on_duplicate: OnDuplicate = "update"
    """A store treats `raise` as `reject`: the box raises, after the call."""

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id)

    def contradicts(self, known_hash: bytes | None, known_algorithm: str | None, known_topic: str) -> bool:
        """Whether a known key had other content: another topic, or another hash of the same algorithm.

        A key that was only recorded or marked has no topic.
        """
        if self.topic and known_topic and self.topic != known_topic:
            return True
        if self.hash is None or known_hash is None or self.hash_algorithm != known_algorithm:
            return False
        return self.hash != known_hash

    def replaces(self, *, conflict: bool) -> bool:
        """Whether it replaces the content of an unfinished message with the same key: if both policies allow it."""
        return self.on_duplicate == "update" and not (conflict and self.on_conflict == "keep")

    def __repr__(self) -> str:
        return f"<Draft {self.topic!r} {self.source!r}/{self.message_id!r}>"  # never the payload


class Message(NamedTuple, Generic[T_co]):
    """A message as its store knows it. Immutable: changes go through the verbs of its box."""

    id: int
    """The store's own sequence number: unique, never used again, and the order of a group."""
    source: str
    message_id: str
    topic: str
    payload: T_co
    format: Format
    headers: Mapping[str, str]
    correlation_id: str | None
    group: str | None
    collapse_key: str | None
    hash: bytes | None
    due: datetime | None
    expires: datetime | None
    received_at: datetime | None
    first_seen: datetime
    last_seen: datetime
    revision: int
    """How often the content was replaced by a later delivery of the same key."""
    state: State
    attempt: int
    """Counted executions that did not succeed."""
    deliveries: int
    """Claims, counted or not."""
    last_error: str | None
    claim: Claim | None
    completed_at: datetime | None
    """When it was done, or when it died."""
    completed_by: UUID | None
    ending: Ending | None
    """How it came to be done."""
    lost_leases: int = 0
    """Leases that it has lost in a row, without any outcome: its worker died, or did not renew in time."""
    lease: Lease | None = None
    """In a handler: the lease under which it works."""

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id)

    @property
    def lease_lost(self) -> bool:
        """In a handler: True once the lease could not be renewed. Stop then; another worker may have the message."""
        return self.lease is not None and self.lease.lost

    def held(self, payload: P, lease: Lease) -> Message[P]:
        """The message as a worker holds it: with its decoded payload, under its lease. Copied once."""
        return tuple.__new__(Message, (*self[:4], payload, *self[5:-1], lease))

    def with_payload(self, payload: P) -> Message[P]:
        # What `_replace` does, without its cost: this runs for every message that is claimed.
        return tuple.__new__(Message, self[:4] + (payload,) + self[5:])  # noqa: RUF005 - half the time

    def __repr__(self) -> str:
        # Never the payload or the headers: a repr ends in logs.
        return (
            f"<Message {self.id} {self.topic!r} {self.source!r}/{self.message_id!r} "
            f"{self.state} attempt={self.attempt} deliveries={self.deliveries}>"
        )


StoredMessage = Message[str | bytes]
"""A message as a store returns it: its payload as it is stored."""

AnyMessage = Message[Any]


class ReceiptStatus(StrEnum):
    """What an enqueue found."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """Known and unfinished; its progress is kept. `updated` says whether its content was replaced."""
    DONE = "done"
    """Known and done; nothing was changed."""
    DEAD = "dead"
    """Known and dead; it waits for a replay. `updated` says whether its content was replaced."""
    REVIVED = "revived"
    """Known and dead, and waiting again because `revive_dead` was asked for."""
    CONFLICT = "conflict"
    """Known, with another topic or content hash. `updated` says whether the content was replaced."""
    REJECTED = "rejected"
    """Known, with another topic or content hash, and `on_conflict="reject"`: nothing was changed."""


class Receipt(NamedTuple):
    """The answer to an enqueue."""

    status: ReceiptStatus
    id: int
    source: str
    message_id: str
    state: State
    """The message's state after the call."""
    superseded: tuple[int, ...] = ()
    """Ids of the waiting messages that this one replaced by its collapse key."""
    replaced_under_lease: bool = False
    """The content was replaced while a worker was handling the old one."""
    updated: bool = False
    """The key was known, and its content was replaced by this one, which may be the same."""

    @classmethod
    def of_new(cls, id_: int, draft: Draft) -> Receipt:
        """Of a message that was new and replaced no other. Nearly all are so, and the usual way takes twice as long."""
        return tuple.__new__(cls, (ReceiptStatus.NEW, id_, draft[0], draft[1], State.WAITING, (), False, False))

    @property
    def is_new(self) -> bool:
        return self.status is ReceiptStatus.NEW

    @property
    def is_refused(self) -> bool:
        """Whether the call has changed nothing but `last_seen`: the key was known, and the message is as it was."""
        return not (self.is_new or self.updated or self.status is ReceiptStatus.REVIVED)

    @property
    def key(self) -> Key:
        return Key(self.source, self.message_id)


class Sighting(NamedTuple):
    """The answer to a deduplication check."""

    state: State
    is_new: bool
    conflict: bool
    """The key came with another content hash before."""
