"""The bodies of the wire protocol that both ends share: the verbs of a guard's store, and messages for inboxes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from postroom._kernel.guard import BeginStatus
from postroom._kernel.message import Format, OnConflict, ReceiptStatus
from postroom._kernel.states import Ending, State

LONGEST_TEXT = 255
MOST_ITEMS = 1000
LARGEST_ID = 10**18 - 1
LARGEST_FENCE = 10**16 - 1
LONGEST_SECONDS = 3_000_000_000.0
"""About 95 years."""

Text = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
ErrorText = Annotated[str, Meta(max_length=10_000)]
RecordId = Annotated[int, Meta(ge=0, le=LARGEST_ID)]
Fence = Annotated[int, Meta(ge=0, le=LARGEST_FENCE)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Hex = Annotated[str, Meta(pattern="^([0-9a-fA-F]{2}){1,64}$")]
Limit = Annotated[int, Meta(ge=1, le=MOST_ITEMS)]
Algorithm = Annotated[str, Meta(min_length=1, max_length=32)]
Encoding = Literal["json", "base64"]
"""How a result is to be read: as it is, or as bytes in base64."""
PayloadEncoding = Literal["json", "base64", "document"]
"""How a payload is to be read: as a value, where a text is stored as text; as bytes in base64; or as a JSON document,
which is stored as it was sent, also if it is a text."""


class Body(Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The body of a request."""


class Reply(Struct, rename="camel", omit_defaults=True):
    """The body of a response."""


# -- values --------------------------------------------------------------------------------------------------------


class RecordKey(Body):
    """The key of a record."""

    source: Text
    message_id: Text


class ClaimProof(Body):
    """The claim of an execution: what begin has returned of it."""

    id: RecordId
    owner: UUID
    fence: Fence


class ClaimReply(Reply):
    """A claim, with the end of its lease."""

    id: int
    owner: UUID
    fence: int
    until: datetime | None = None
    """By the clock of the service. None: the lease has no end."""
    lease_seconds: float | None = None
    """The seconds until the lease ends; negative if it has ended."""


class StoredResult(Reply):
    """A result as it is stored."""

    result: Raw
    result_encoding: Encoding = "json"


# -- the verbs of a guard ------------------------------------------------------------------------------------------


class GuardBody(Body):
    """A call of a verb of a guard's store."""

    dedup_seconds: Seconds | None = None
    """How long a key is recognised. None: until its record is purged."""


class BeginItem(Body):
    """One execution that is about to begin."""

    source: Text
    message_id: Text
    owner: UUID
    lease_seconds: Seconds | None
    """None: the lease has no end."""
    topic: Text | None = None
    hash: Hex | None = None
    hash_algorithm: Algorithm = "sha256"


class BeginCall(GuardBody, kw_only=True):
    """Begins executions."""

    begins: Annotated[list[BeginItem], Meta(max_length=MOST_ITEMS)]


class BegunItem(Reply):
    """What a begin found."""

    status: BeginStatus
    claim: ClaimReply | None = None
    deliveries: int = 0
    until: datetime | None = None
    lease_seconds: float | None = None
    stored: StoredResult | None = None
    error: str | None = None


class BegunItems(Reply):
    """What begins found, in their order."""

    begun: list[BegunItem]


class SettleItem(Body):
    """The outcome of an execution."""

    claim: ClaimProof
    verdict: Literal["done", "release", "dead"]
    delay_seconds: Seconds | None = None
    error: ErrorText | None = None
    counts: bool = False
    result: Raw | UnsetType = UNSET
    result_encoding: Encoding = "json"


class SettleCall(GuardBody, kw_only=True):
    """Applies outcomes."""

    settlements: Annotated[list[SettleItem], Meta(max_length=MOST_ITEMS)]


class RenewCall(GuardBody, kw_only=True):
    """Moves the ends of leases."""

    claims: Annotated[list[ClaimProof], Meta(max_length=MOST_ITEMS)]
    lease_seconds: Seconds


class MarkCall(GuardBody, kw_only=True):
    """Moves records to a state, without their claims."""

    keys: Annotated[list[RecordKey], Meta(max_length=MOST_ITEMS)]
    mark: Literal["processed", "dead"]
    error: ErrorText | None = None


class Kept(Reply):
    """For each item: True if it was applied."""

    kept: list[bool]


class RecordItem(Body):
    """A key that was seen."""

    source: Text
    message_id: Text
    hash: Hex | None = None
    hash_algorithm: Algorithm = "sha256"


class RecordCall(GuardBody, kw_only=True):
    """Records that keys were seen."""

    keys: Annotated[list[RecordItem], Meta(max_length=MOST_ITEMS)]


class RecordedKey(Reply):
    """The status of a key before it was recorded."""

    state: State
    is_new: bool
    conflict: bool


class RecordedKeys(Reply):
    """The statuses of keys."""

    recorded: list[RecordedKey]


class Selection(GuardBody, kw_only=True):
    """Selects records. A field that is left out does not restrict."""

    states: list[State] | None = None
    ids: Annotated[list[RecordId], Meta(max_length=MOST_ITEMS)] | None = None
    topic: Text | None = None
    source: Text | None = None
    message_id: Text | None = None
    keys: Annotated[list[RecordKey], Meta(max_length=MOST_ITEMS)] | None = None
    after: RecordId = 0
    limit: Limit = 100


class RecordReply(Reply):
    """A record of a guard."""

    id: int
    source: str
    message_id: str
    topic: str
    format: Format
    state: State
    deliveries: int
    attempt: int
    revision: int
    lost_leases: int
    first_seen: datetime
    last_seen: datetime
    claim: ClaimReply | None = None
    stored: StoredResult | None = None
    hash: str | None = None
    last_error: str | None = None
    completed_at: datetime | None = None
    completed_by: UUID | None = None
    ending: Ending | None = None


class Records(Reply):
    """Records, in id order."""

    records: list[RecordReply]


class ReplayedKeys(Reply):
    """The keys of records that wait again."""

    keys: list[RecordKey]


class PurgeCall(GuardBody, kw_only=True):
    """Deletes records of one state."""

    state: Literal["done", "dead", "seen"]
    older_than_seconds: Seconds
    age_from: Literal["last_seen", "completed_at"] = "completed_at"
    limit: Limit = MOST_ITEMS


class ReapCall(GuardBody, kw_only=True):
    """Releases expired leases."""

    limit: Limit


class Changed(Reply):
    """How many records were changed."""

    count: int
    expired: int = 0


class CountsCall(GuardBody, kw_only=True):
    """Counts records."""


class StateCounts(Reply):
    """The number of records in each state."""

    counts: dict[State, int]


# -- messages ------------------------------------------------------------------------------------------------------


class NewMessage(Body):
    """A message for an inbox."""

    topic: Text
    payload: Raw
    source: Text
    message_id: Text
    payload_encoding: PayloadEncoding = "json"
    correlation_id: Text | None = None
    due: datetime | None = None
    group: Text | None = None
    headers: dict[str, str] | None = None
    expires: datetime | None = None
    received_at: datetime | None = None
    hash: Hex | None = None
    """A later message with the same key and another hash is a conflict."""
    hash_algorithm: Algorithm = "sha256"
    on_conflict: OnConflict = "update"
    revive_dead: bool = False
    on_duplicate: Literal["update", "reject"] = "update"


NewMessages = Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST_ITEMS)]
"""Several messages, which are stored together or not at all."""
AnyMessages = NewMessage | NewMessages


class StoredReceipt(Reply):
    """What became of a message."""

    status: ReceiptStatus
    source: str
    message_id: str
    id: int
    state: State
    updated: bool = False
    replaced_under_lease: bool = False


class Receipts(Reply):
    """A receipt for each message, in their order."""

    receipts: list[StoredReceipt]


class Info(Reply):
    """What the service is, for clients that look for it."""

    service: str
    version: str
    protocols: list[str]
    auth: Literal["none", "bearer"]
    durable: bool
    """Whether the store of the service keeps what it has accepted when its process ends."""
