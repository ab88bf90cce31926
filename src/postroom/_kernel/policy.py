"""The policies of a box, as frozen values grouped by concern, and the limits that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from postroom._kernel.backoff import Backoff
from postroom._kernel.message import OnDuplicate
from postroom._kernel.states import BoxKind, State

Time = TypeVar("Time", int, datetime)

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
    """`unblock`: the group continues without its dead message. `block`: it waits until that is replayed or skipped."""
    change: bool = False
    """Replace another order that is recorded in the store."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How often, and for how long, a message is delivered."""

    max_attempts: int = 10
    """Counted executions before a message is dead."""
    backoff: Backoff = field(default_factory=Backoff.exponential)
    max_deliveries: int | None = None
    """Claims before a message is dead, counted or not."""
    max_lost_leases: int | None = DEFAULT_MAX_LOST_LEASES
    """Leases in a row that pass without an outcome before a message is dead: it may crash its workers."""
    lifetime: timedelta | None = None
    """How long a message without `expires` may wait before it is dead."""
    on_stale_ack: Literal["done", "requeue"] = "done"
    """What an ack does if the content was replaced while the message was handled."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept, and for how long."""

    dedup_window: timedelta | None = None
    """How long a key recognises duplicates. None: until its message is purged."""
    done_age: timedelta = DEFAULT_RETENTION
    """How long done messages are kept."""
    age_from: Literal["last_seen", "completed_at"] = "last_seen"
    dead_age: timedelta | None = None
    """How long dead letters are kept. None: until they are purged by hand."""
    on_success: Literal["keep", "delete"] = "keep"
    """`delete` removes the content at the ack. The key stays, so that a duplicate is still recognised."""
    dead_letter: Literal["keep", "discard"] = "keep"
    on_duplicate: OnDuplicate | None = None
    """The default for writes with a known key. None: see `NewMessage.on_duplicate`."""
    purge_interval: timedelta | None = None
    """The pause between two purges in a running room. None: as the room has it."""

    @property
    def ages(self) -> dict[State, timedelta]:
        """Returns the states that are purged by default, each with its age."""
        kept = {State.DONE: self.done_age}
        return kept if self.dead_age is None else kept | {State.DEAD: self.dead_age}


@dataclass(frozen=True, slots=True)
class Work:
    """How a worker of this box works."""

    batch_size: int = 50
    """Messages that one claim takes."""
    lease: timedelta = timedelta(seconds=30)
    renew: float = 0.5
    """The part of a lease after which it is renewed, while its message is in hand. 0: never."""
    concurrency: int = 1
    """Handlers that run at the same time in one process."""
    idle: tuple[timedelta, timedelta] = (timedelta(seconds=0.5), timedelta(seconds=5))
    """The first and the longest pause between claims that find nothing."""
    handler_timeout: timedelta | None = None
    on_unhandled: Literal["abandon", "release", "dead"] = "abandon"
    """What a worker does with a message whose topic has no handler."""
    on_undecodable: Literal["failed", "dead"] = "failed"
    only_handled: bool = False
    """A worker claims only topics for which it has a handler, and leaves the others to other workers."""
    read_delay: timedelta = timedelta()
    """The pause between two claims, even while there are messages to claim."""


@dataclass(frozen=True, slots=True)
class Box:
    """A named queue in a store, with its policies."""

    kind: BoxKind
    name: str
    order: Order = Order()
    delivery: Delivery = field(default_factory=Delivery)
    retention: Retention = Retention()
    work: Work = Work()
    write_batch_size: int = DEFAULT_WRITE_BATCH_SIZE
    """Messages that one step of `enqueue_many` writes in a store without transactions."""
    key: str = field(init=False)
    """Kind and name in one text: the name of the box in a store."""
    can_have_joins: bool = field(init=False)
    """Whether its messages can be steps of joins: those of an outbox. An inbox spares the statements for them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.kind}:{self.name}")
        object.__setattr__(self, "can_have_joins", self.kind == "outbox")


def cause_of_death(box: Box, *, deliveries: int, lost_leases: int, expires: Time | None, now: Time) -> str | None:
    """Returns the reason why a message must not be claimed again, or None."""
    if expires is not None and expires <= now:
        return EXPIRED
    most, most_lost = box.delivery.max_deliveries, box.delivery.max_lost_leases
    if (most is not None and deliveries >= most) or (most_lost is not None and lost_leases >= most_lost):
        return DELIVERY_LIMIT
    return None


def suspect_from(delivery: Delivery) -> int:
    """Returns the number of lost leases from which a message is a suspect.

    One lost lease may be an accident. Where the next one would be the last, one is enough.
    """
    most = delivery.max_lost_leases
    return 2 if most is None else max(1, min(2, most - 1))


def is_suspect(box: Box, *, deliveries: int, lost_leases: int) -> bool:
    """Returns True if a message may be the one that crashes its workers.

    A suspect is claimed alone. Otherwise the messages that were in hand together with it would lose their leases
    together with it, and reach the limit too.
    """
    if not lost_leases:
        return False
    most = box.delivery.max_deliveries
    return lost_leases >= suspect_from(box.delivery) or (most is not None and deliveries + 1 >= most)
