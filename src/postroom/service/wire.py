"""The wire protocol, version 1: bodies of requests and responses. msgspec decodes, checks and describes them.

Those that the client of this package uses are in `postroom._stores.http.wire`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from postroom._stores.http.wire import Body, Encoding, Reply, Text
from postroom.service.settings import DEFAULT_LEASE, LONGEST_LEASE

LONGEST_KEY = 255
SHORTEST_LEASE = 1.0

LeaseId = Annotated[str, Meta(min_length=1, max_length=200)]
LeaseSeconds = Annotated[float, Meta(ge=SHORTEST_LEASE, le=LONGEST_LEASE)]


class BeginOutcome(StrEnum):
    """What try-begin returns."""

    ACQUIRED = "Acquired"
    PROCESSED = "Processed"
    BUSY = "Busy"
    CONFLICT = "Conflict"
    DEAD = "Dead"


class SettleOutcome(StrEnum):
    """What mark-processed, release, renew and fail return."""

    PROCESSED = "Processed"
    RELEASED = "Released"
    RENEWED = "Renewed"
    DEAD = "Dead"
    LEASE_LOST = "LeaseLost"


class KeyState(StrEnum):
    """The status of a key in a report."""

    UNKNOWN = "Unknown"
    SEEN = "Seen"
    LEASED = "Leased"
    PROCESSED = "Processed"
    DEAD = "Dead"


class TryBegin(Body):
    """Begins the handling of a key."""

    key: Text
    owner: Text | None = None
    """A UUID makes the call repeatable; any other text is a name for logs."""
    lease_seconds: LeaseSeconds = DEFAULT_LEASE
    hash: Annotated[str, Meta(pattern="^[0-9a-fA-F]{2,128}$")] | None = None
    """A SHA-256 hash of the content, in hex. A key whose record has another one is a conflict."""
    topic: Text | None = None
    """What the key is about, for people who look at the records."""


class Begun(Reply):
    """The result of try-begin."""

    status: BeginOutcome
    lease_id: str | UnsetType = UNSET
    """Acquired: proves the lease."""
    expires_at: datetime | UnsetType = UNSET
    """Acquired and Busy: the end of the lease, by the clock of the service."""
    lease_seconds: float | UnsetType = UNSET
    """Acquired and Busy: the seconds until the lease ends."""
    attempts: int | UnsetType = UNSET
    """Acquired: how often the key was acquired, this time included."""
    result: Any = UNSET
    """Processed: the stored result."""
    result_encoding: Encoding | UnsetType = UNSET


class MarkProcessed(Body):
    """Ends the handling of a key with success."""

    key: Text
    lease_id: LeaseId
    result: Any = UNSET
    """Stored, and returned to later calls of try-begin."""
    result_encoding: Encoding = "json"


class Release(Body):
    """Gives a lease back: the key can be acquired again."""

    key: Text
    lease_id: LeaseId


class Renew(Body):
    """Moves the end of a lease."""

    key: Text
    lease_id: LeaseId
    lease_seconds: LeaseSeconds = DEFAULT_LEASE


class Fail(Body):
    """Ends the handling of a key without success: it is not acquired again."""

    key: Text
    lease_id: LeaseId
    error: Annotated[str, Meta(max_length=10_000)] = ""


class Settled(Reply):
    """The result of mark-processed, release, renew and fail."""

    status: SettleOutcome
    expires_at: datetime | UnsetType = UNSET
    lease_seconds: float | UnsetType = UNSET


class Report(Reply, omit_defaults=False):
    """The state of a key."""

    status: KeyState
    attempts: int
    first_seen: datetime | None
    last_seen: datetime | None
    lease_until: datetime | None = None
    processed_at: datetime | None = None


class Problem(Reply):
    """Problem details (RFC 9457)."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    request_id: str | UnsetType = UNSET
