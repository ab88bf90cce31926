"""Messages: a draft on its way into a store, a message as its store returns it, and the results of writes."""

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
    """The key of a message: a box stores a message with the same key once."""

    source: str
    message_id: str


class Claim(NamedTuple):
    """The proof that a worker has leased a message.

    `fence` grows with every claim of the message. A store applies an outcome only if owner and fence match, so the
    outcome of an earlier claim is refused.
    """

    id: int
    owner: UUID
    fence: int
    until: datetime


class Lease:
    """The lease of a message that a worker has in hand. The worker updates it while the handler runs."""

    __slots__ = ("claim", "ends", "lost", "store")

    def __init__(self, claim: Claim, ends: float, store: str = "") -> None:
        self.claim = claim
        """The current claim. A worker that claims a message which it has in hand goes on under the new claim."""
        self.ends = ends
        """When the lease ends, by the clock of the event loop: not later than in the store."""
        self.lost = False
        self.store = store
        """The name of the store; in a room with many stores, its identifier."""


class Draft(NamedTuple):
    """A message on its way into a store. Its values are checked and its payload is encoded."""

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
    """Counted from the store's clock. Not used if `expires` is given."""
    received_at: datetime | None = None
    on_conflict: OnConflict = "update"
    revive_dead: bool = False
    on_duplicate: OnDuplicate = "update"
    """A store treats `raise` as `reject`; the box raises the error after the call."""
    join: UUID | None = None
    """The join of which the message with this key becomes a step."""

    @property
    def key(self) -> Key:
        """Source and message id."""
        return Key(self.source, self.message_id)

    def contradicts(self, known_hash: bytes | None, known_algorithm: str | None, known_topic: str) -> bool:
        """Returns True if a message with the same key has other content: another topic, or another hash of the same
        algorithm.

        A key that was only recorded or marked has no topic.
        """
        if self.topic and known_topic and self.topic != known_topic:
            return True
        if self.hash is None or known_hash is None or self.hash_algorithm != known_algorithm:
            return False
        return self.hash != known_hash

    def replaces(self, *, conflict: bool) -> bool:
        """Returns True if this draft replaces the content of an unfinished message with the same key."""
        return self.on_duplicate == "update" and not (conflict and self.on_conflict == "keep")

    def __repr__(self) -> str:
        return f"<Draft {self.topic!r} {self.source!r}/{self.message_id!r}>"  # never the payload


class Message(NamedTuple, Generic[T_co]):
    """A message as its store returned it. Immutable: the verbs of its box change a message."""

    id: int
    """The sequence number that the store gave it: unique, never used again, and the order of a group."""
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
    """How often a later message with the same key replaced the content."""
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
    """Why it is done."""
    lost_leases: int = 0
    """Leases in a row that ended without an outcome: its worker died, or did not renew in time."""
    lease: Lease | None = None
    """In a handler: the lease of the worker."""

    @property
    def key(self) -> Key:
        """Source and message id."""
        return Key(self.source, self.message_id)

    @property
    def lease_lost(self) -> bool:
        """In a handler: True if the lease could not be renewed. Stop then: another worker may have the message."""
        return self.lease is not None and self.lease.lost

    @property
    def store(self) -> str:
        """In a handler: the store of the message. In a room with many stores, this is its identifier."""
        return "" if self.lease is None else self.lease.store

    def held(self, payload: object, lease: Lease) -> HeldMessage:
        """Returns the message as a worker has it in hand, with its decoded payload."""
        values: list[object] = [*self]
        values[_PAYLOAD], values[_LEASE] = payload, lease
        return tuple.__new__(HeldMessage, values)

    def with_payload(self, payload: P) -> Message[P]:
        """Returns the message with its decoded payload. (`_replace` takes four times as long.)"""
        values: list[object] = [*self]
        values[_PAYLOAD] = payload
        return tuple.__new__(Message, values)

    def __repr__(self) -> str:
        # Without the payload and the headers, since a repr ends up in logs.
        return (
            f"<Message {self.id} {self.topic!r} {self.source!r}/{self.message_id!r} "
            f"{self.state} attempt={self.attempt} deliveries={self.deliveries}>"
        )


_PAYLOAD, _LEASE = Message._fields.index("payload"), Message._fields.index("lease")


class HeldMessage(Message[Any]):
    """A message that a worker has in hand: it always has a lease."""

    __slots__ = ()
    if TYPE_CHECKING:
        lease: Lease


StoredMessage = Message[str | bytes]
"""A message as a store returns it: its payload is encoded."""

AnyMessage = Message[Any]
"""A message with any payload."""


class ReceiptStatus(StrEnum):
    """What an enqueue found for its key."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """Known and unfinished; its progress is kept. `updated` says whether its content was replaced."""
    DONE = "done"
    """Known and done; nothing was changed."""
    DEAD = "dead"
    """Known and dead; it waits for a replay. `updated` says whether its content was replaced."""
    REVIVED = "revived"
    """Known and dead; it waits again, since `revive_dead` was set."""
    CONFLICT = "conflict"
    """Known, with another topic or content hash. `updated` says whether the content was replaced."""
    REJECTED = "rejected"
    """Known, with another topic or content hash, and `on_conflict="reject"`: nothing was changed."""


class Receipt(NamedTuple):
    """The result of an enqueue."""

    status: ReceiptStatus
    id: int
    source: str
    message_id: str
    state: State
    """The state of the message after the call."""
    superseded: tuple[int, ...] = ()
    """Ids of the waiting messages that this one replaced by its collapse key."""
    replaced_under_lease: bool = False
    """The content was replaced while a worker was handling the old one."""
    updated: bool = False
    """The key was known, and this content replaced the earlier one, which may be equal."""

    @classmethod
    def of_new(cls, id_: int, draft: Draft) -> Receipt:
        """Returns the receipt of a new message that replaced no other, in half the time of the constructor."""
        return tuple.__new__(cls, (ReceiptStatus.NEW, id_, draft[0], draft[1], State.WAITING, (), False, False))

    @property
    def is_new(self) -> bool:
        """True if the key was not known."""
        return self.status is ReceiptStatus.NEW

    @property
    def is_refused(self) -> bool:
        """True if the key was known and the call changed nothing but `last_seen`."""
        return not (self.is_new or self.updated or self.status is ReceiptStatus.REVIVED)

    @property
    def key(self) -> Key:
        """Source and message id."""
        return Key(self.source, self.message_id)


class KeyStatus(NamedTuple):
    """The result of a deduplication check."""

    state: State
    is_new: bool
    conflict: bool
    """An earlier message with this key had another content hash."""
