"""The options of a box, as keyword arguments, and the policies that they make."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypedDict

from postroom._boxes import check
from postroom._boxes.duplicates import ON_DUPLICATE
from postroom._kernel.backoff import Backoff
from postroom._kernel.message import OnDuplicate
from postroom._kernel.policy import (
    DEFAULT_MAX_LOST_LEASES,
    DEFAULT_RETENTION,
    DEFAULT_WRITE_BATCH_SIZE,
    Box,
    Delivery,
    Order,
    Retention,
    Work,
)
from postroom._kernel.states import BoxKind
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing
from postroom.spi import Features


class BoxOptions(TypedDict, total=False):
    """The options of a box. `room.inbox()` describes each of them, and docs/reference/options.md in more detail."""

    order: Literal["none", "fifo"]
    change_order: bool
    on_dead: Literal["unblock", "block"]
    max_attempts: int
    backoff: Backoff
    max_deliveries: int | None
    max_lost_leases: int | None
    lifetime: timedelta | None
    on_stale_ack: Literal["done", "requeue"]
    dedup_window: timedelta | None
    on_duplicate: OnDuplicate
    retention: timedelta
    retention_from: Literal["last_seen", "completed_at"]
    dead_retention: timedelta | None
    on_success: Literal["keep", "delete"]
    dead_letter: Literal["keep", "discard"]
    write_batch_size: int
    batch_size: int
    lease_seconds: float
    lease_renewal: bool | float
    concurrency: int
    poll_interval: timedelta
    max_poll_interval: timedelta
    read_delay: timedelta
    handler_timeout: timedelta | None
    on_unhandled: Literal["abandon", "release", "dead"]
    on_undecodable: Literal["failed", "dead"]
    only_handled: bool


def make_box(kind: BoxKind, name: str, features: Features, options: BoxOptions) -> Box:
    """Returns a box with the policies that these options make. Raises for an option that is unknown or bad."""
    unknown = set(options) - set(BoxOptions.__annotations__)
    if unknown:
        raise ArgumentTypeError(
            f"{kind} has no option {', '.join(sorted(unknown))}; there are {', '.join(BoxOptions.__annotations__)}"
        )
    order = check.choice("order", options.get("order", "none"), ("none", "fifo"))
    if order == "fifo" and not features.fifo:
        raise FeatureMissing(f"this store cannot keep the order of groups: {kind} {name!r} cannot be FIFO")
    if not features.claims:
        _check_without_claims(kind, name, options)
    return Box(
        kind,
        check.text("name", name, longest=100),
        Order(
            order == "fifo",
            check.choice("on_dead", options.get("on_dead", "unblock"), ("unblock", "block")),
            check.flag("change_order", options.get("change_order", False)),
        ),
        _delivery(options),
        _retention(kind, options),
        _work(options),
        check.count("write_batch_size", options.get("write_batch_size", DEFAULT_WRITE_BATCH_SIZE), most=10_000),
    )


def _check_without_claims(kind: BoxKind, name: str, options: BoxOptions) -> None:
    """Raises FeatureMissing for what a store without a work queue cannot do."""
    if kind == "outbox":
        raise FeatureMissing(
            f"this store has no outboxes: outbox {name!r} belongs into the database of your application, since its "
            "messages commit with your writes"
        )
    for option in ("dedup_window", "lifetime"):
        if options.get(option) is not None:
            raise FeatureMissing(f"this store cannot apply {option}: leave it out of inbox {name!r}")


def _delivery(options: BoxOptions) -> Delivery:
    backoff = options.get("backoff", Backoff.exponential())
    if not isinstance(backoff, Backoff):
        raise ArgumentTypeError(f"backoff must be a Backoff, not {type(backoff).__name__}")
    most, most_lost = options.get("max_deliveries"), options.get("max_lost_leases", DEFAULT_MAX_LOST_LEASES)
    return Delivery(
        max_attempts=check.count("max_attempts", options.get("max_attempts", 10)),
        backoff=backoff,
        max_deliveries=None if most is None else check.count("max_deliveries", most),
        max_lost_leases=None if most_lost is None else check.count("max_lost_leases", most_lost),
        lifetime=check.optional_duration("lifetime", options.get("lifetime")),
        on_stale_ack=check.choice("on_stale_ack", options.get("on_stale_ack", "done"), ("done", "requeue")),
    )


def _retention(kind: BoxKind, options: BoxOptions) -> Retention:
    window = check.optional_duration("dedup_window", options.get("dedup_window"), zero=True)
    on_duplicate = options.get("on_duplicate")
    age_from: Literal["last_seen", "completed_at"] = "last_seen" if kind == "inbox" else "completed_at"
    return Retention(
        window or None,  # a window of 0 means none, as in "no interval"
        check.duration("retention", options.get("retention", DEFAULT_RETENTION), zero=True),
        check.choice("retention_from", options.get("retention_from", age_from), ("last_seen", "completed_at")),
        check.optional_duration("dead_retention", options.get("dead_retention"), zero=True),
        check.choice("on_success", options.get("on_success", "keep"), ("keep", "delete")),
        check.choice("dead_letter", options.get("dead_letter", "keep"), ("keep", "discard")),
        None if on_duplicate is None else check.choice("on_duplicate", on_duplicate, ON_DUPLICATE),
    )


def _work(options: BoxOptions) -> Work:
    default = Work()
    shortest = check.duration("poll_interval", options.get("poll_interval", default.idle[0]))
    longest = check.duration("max_poll_interval", options.get("max_poll_interval", max(shortest, default.idle[1])))
    if longest < shortest:
        raise ArgumentValueError(f"max_poll_interval ({longest}) must not be shorter than poll_interval ({shortest})")
    return Work(
        check.count("batch_size", options.get("batch_size", default.batch_size), most=10_000),
        check.lease(options.get("lease_seconds", default.lease.total_seconds())),
        renewal(options.get("lease_renewal", True)),
        check.count("concurrency", options.get("concurrency", default.concurrency)),
        (shortest, longest),
        check.optional_duration("handler_timeout", options.get("handler_timeout")),
        check.choice("on_unhandled", options.get("on_unhandled", default.on_unhandled), ("abandon", "release", "dead")),
        check.choice("on_undecodable", options.get("on_undecodable", default.on_undecodable), ("failed", "dead")),
        check.flag("only_handled", options.get("only_handled", default.only_handled)),
        check.duration("read_delay", options.get("read_delay", default.read_delay), zero=True),
    )


def renewal(value: object) -> float:
    """Returns the part of a lease after which it is renewed: True is the default, False is 0, never."""
    if isinstance(value, bool):
        return Work().renew if value else 0.0
    if not isinstance(value, int | float):
        raise ArgumentTypeError(f"lease_renewal must be True, False or a number, not {type(value).__name__}")
    if not 0.1 <= value <= 0.9:
        raise ArgumentValueError(f"lease_renewal must be between 0.1 and 0.9 of the lease, not {value}")
    return float(value)
