"""The wire protocol, version 1: bodies of requests and responses. msgspec decodes, checks and describes them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

LONGEST_KEY = 255
SHORTEST_LEASE, LONGEST_LEASE = 1.0, 3600.0
DEFAULT_LEASE = 60.0

Text = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]
LeaseId = Annotated[str, Meta(min_length=1, max_length=200)]
LeaseSeconds = Annotated[float, Meta(ge=SHORTEST_LEASE, le=LONGEST_LEASE)]
Encoding = Literal["json", "base64"]
"""How a result or a payload is to be read: as it is, or as bytes in base64."""


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


class _Body(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


class _Reply(Struct, rename="camel", kw_only=True, omit_defaults=True):
    pass


class TryBegin(_Body):
    """Begins the handling of a key."""

    key: Text
    owner: Text | None = None
    """A UUID makes the call repeatable; any other text is a name for logs."""
    lease_seconds: LeaseSeconds = DEFAULT_LEASE
    hash: Annotated[str, Meta(pattern="^[0-9a-fA-F]{2,128}$")] | None = None
    """A SHA-256 hash of the content, in hex. A key whose record has another one is a conflict."""
    topic: Text | None = None
    """What the key is about, for people who look at the records."""


class Begun(_Reply):
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


class MarkProcessed(_Body):
    """Ends the handling of a key with success."""

    key: Text
    lease_id: LeaseId
    result: Any = UNSET
    """Stored, and returned to later calls of try-begin."""
    result_encoding: Encoding = "json"


class Release(_Body):
    """Gives a lease back: the key can be acquired again."""

    key: Text
    lease_id: LeaseId


class Renew(_Body):
    """Moves the end of a lease."""

    key: Text
    lease_id: LeaseId
    lease_seconds: LeaseSeconds = DEFAULT_LEASE


class Fail(_Body):
    """Ends the handling of a key without success: it is not acquired again."""

    key: Text
    lease_id: LeaseId
    error: Annotated[str, Meta(max_length=10_000)] = ""


class Settled(_Reply):
    """The result of mark-processed, release, renew and fail."""

    status: SettleOutcome
    expires_at: datetime | UnsetType = UNSET
    lease_seconds: float | UnsetType = UNSET


class Report(_Reply, omit_defaults=False):
    """The state of a key."""

    status: KeyState
    attempts: int
    first_seen: datetime | None
    last_seen: datetime | None
    lease_until: datetime | None = None
    processed_at: datetime | None = None


class NewMessage(_Body):
    """A message for an inbox."""

    topic: Text
    payload: Any
    source: Text
    message_id: Text
    payload_encoding: Encoding = "json"
    correlation_id: Text | None = None
    due: datetime | None = None
    group: Text | None = None


NewMessages = Annotated[list[NewMessage], Meta(min_length=1, max_length=1000)]
"""Several messages, which are stored together or not at all."""
AnyMessages = NewMessage | NewMessages


class StoredReceipt(_Reply):
    """What became of a message."""

    status: str
    source: str
    message_id: str


class Receipts(_Reply):
    """A receipt for each message, in their order."""

    receipts: list[StoredReceipt]


class Info(_Reply):
    """What the service is, for clients that look for it."""

    service: str
    version: str
    protocols: list[str]
    auth: Literal["none", "bearer"]


class Problem(_Reply):
    """Problem details (RFC 9457)."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    request_id: str | UnsetType = UNSET
