"""What a box promises about its messages: small frozen values, grouped by concern."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from postroom._kernel.backoff import Backoff
from postroom._kernel.message import OnDuplicate
from postroom._kernel.states import BoxKind, State

EXPIRED = "expired"
DELIVERY_LIMIT = "delivery limit"
DEFAULT_RETENTION = timedelta(days=30)
DEFAULT_WRITE_BATCH_SIZE = 1000
DEFAULT_MAX_LOST_LEASES = 10


@dataclass(frozen=True, slots=True)
class Order:
    """Whether the messages of a group are handled one after the other."""

    fifo: bool = False
    on_dead: Literal["unblock", "block"] = "unblock"
    """Whether a dead head lets the rest of its group go on."""
    change: bool = False
    """Whether this order replaces another that is recorded in the store."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How often a message is tried."""

    max_attempts: int = 10
    """Counted executions before a message is dead."""
    backoff: Backoff = field(default_factory=Backoff.exponential)
    max_deliveries: int | None = None
    """Claims before a message is dead, whatever became of them."""
    max_lost_leases: int | None = DEFAULT_MAX_LOST_LEASES
    """Leases in a row that end without an outcome before a message is dead: stops a message that kills its workers."""
    lifetime: timedelta | None = None
    """How long a message may wait when it says no `expires` of its own."""
    on_stale_ack: Literal["done", "requeue"] = "done"
    """What an ack means when the content changed while the message was handled."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is remembered, and for how long."""

    dedup_window: timedelta | None = None
    """None: a key is remembered until its message is purged."""
    retention: timedelta = DEFAULT_RETENTION
    """How long done messages are kept."""
    retention_from: Literal["last_seen", "completed_at"] = "last_seen"
    dead_retention: timedelta | None = None
    """None: dead letters are kept until somebody purges them."""
    on_success: Literal["keep", "delete"] = "keep"
    """`delete` removes the content at the ack; the key stays, since it is what recognises a duplicate."""
    dead_letter: Literal["keep", "discard"] = "keep"
    on_duplicate: OnDuplicate | None = None
    """What a write with a known key does, where the write itself does not say. None: see `NewMessage.on_duplicate`."""

    @property
    def ages(self) -> dict[State, timedelta]:
        """The states that are purged without being named, and the age at which they are."""
        kept = {State.DONE: self.retention}
        return kept if self.dead_retention is None else kept | {State.DEAD: self.dead_retention}


@dataclass(frozen=True, slots=True)
class Work:
    """How a worker goes about it."""

    batch_size: int = 50
    """Messages claimed at once."""
    lease: timedelta = timedelta(seconds=30)
    renew: float = 0.5
    """At which part of their time leases are renewed while messages are in hand. 0: they are not renewed."""
    concurrency: int = 1
    """Handlers that run at the same time in one process."""
    idle: tuple[timedelta, timedelta] = (timedelta(seconds=0.5), timedelta(seconds=5))
    """The first and the longest pause between polls that find nothing."""
    handler_timeout: timedelta | None = None
    on_unhandled: Literal["abandon", "release", "dead"] = "abandon"
    """What becomes of a message whose topic has no handler here."""
    on_undecodable: Literal["failed", "dead"] = "failed"
    only_handled: bool = False
    """Whether a worker claims only the topics it has handlers for, and leaves the rest to others."""
    read_delay: timedelta = timedelta()
    """The pause between two claims, also while there is work."""


@dataclass(frozen=True, slots=True)
class Box:
    """A named queue in a store, with its policies."""

    kind: BoxKind
    name: str
    order: Order = Order()
    delivery: Delivery = field(default_factory=Delivery)
    keeping: Keeping = Keeping()
    work: Work = Work()
    write_batch_size: int = DEFAULT_WRITE_BATCH_SIZE
    """Messages that one step of `enqueue_many` writes, on a store without transactions."""
    key: str = field(init=False)
    """Kind and name in one text: how stores tell boxes apart."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.kind}:{self.name}")


def cause_of_death(box: Box, *, deliveries: int, lost_leases: int, expires: Any, now: Any) -> str | None:
    """Why a message must not be claimed again, if there is a reason. `expires` and `now` are of one kind."""
    if expires is not None and expires <= now:
        return EXPIRED
    most, most_lost = box.delivery.max_deliveries, box.delivery.max_lost_leases
    if (most is not None and deliveries >= most) or (most_lost is not None and lost_leases >= most_lost):
        return DELIVERY_LIMIT
    return None


def suspect_from(delivery: Delivery) -> int:
    """From how many lost leases on a message is suspect: one is an accident, unless the next one is the last."""
    most = delivery.max_lost_leases
    return 2 if most is None else max(1, min(2, most - 1))


def is_suspect(box: Box, *, deliveries: int, lost_leases: int) -> bool:
    """Whether a message may be what kills its workers.

    Such a message is claimed alone. So the others that a dying worker had in hand do not reach the limit together with
    the one that kills it.
    """
    if not lost_leases:
        return False
    most = box.delivery.max_deliveries
    return lost_leases >= suspect_from(box.delivery) or (most is not None and deliveries + 1 >= most)
