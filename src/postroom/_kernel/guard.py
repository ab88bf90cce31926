"""The guard: the values of `begin`, and the rule for a key that is known."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from postroom._kernel.limits import LATEST
from postroom._kernel.message import Claim, Draft, Format, StoredMessage
from postroom._kernel.settlement import RESULT_FORMATS
from postroom._kernel.states import State

NO_END = LATEST
"""The end of a lease without an end, in every store: no clock reaches it."""


class Begin(NamedTuple):
    """One execution that is about to begin."""

    draft: Draft
    """The record, if there is none: its key, topic and content hash."""
    owner: UUID
    """A new token for each execution. A second begin with the same owner returns the claim of the first."""
    lease: timedelta | None
    """None: the lease has no end, so no begin and no reap takes it."""

    def lease_end(self, now: datetime) -> datetime:
        """Returns the end of a lease that begins now."""
        return NO_END if self.lease is None else now + self.lease


class BeginStatus(StrEnum):
    """What a begin found for its key."""

    ACQUIRED = "acquired"
    """The caller has the lease, and runs the handler."""
    PROCESSED = "processed"
    """The handler has succeeded before. Nothing is left to do."""
    BUSY = "busy"
    """Another caller has the lease. It may fail, so the delivery must be tried again."""
    CONFLICT = "conflict"
    """The key belongs to a message with another content hash."""
    DEAD = "dead"
    """The handler has failed for good. The record waits for a replay."""


class Begun(NamedTuple):
    """The result of a begin."""

    status: BeginStatus
    claim: Claim | None = None
    """Acquired: the proof of the lease."""
    deliveries: int = 0
    """Acquired: how often the key was acquired, including this time."""
    until: datetime | None = None
    """Busy: the end of the lease. None: it has no end."""
    result: Any = None
    """Processed: what the handler returned, if it was kept. A store returns it encoded."""
    format: Format | None = None
    """Processed: the format of the result. None: no result was kept."""
    error: str | None = None
    """Dead: the error."""

    @property
    def has_result(self) -> bool:
        """True if a result was kept. It may be None."""
        return self.format is not None

    @classmethod
    def of(cls, status: BeginStatus, record: StoredMessage) -> Begun:
        """Returns what a begin with this status reports of a record, as it is after the begin."""
        claim = record.claim
        if status is BeginStatus.ACQUIRED:
            return cls(status, claim, record.deliveries)
        if status is BeginStatus.BUSY and claim is not None:
            return cls(status, until=None if claim.until >= NO_END else claim.until)
        if status is BeginStatus.PROCESSED and record.format in RESULT_FORMATS:
            return cls(status, result=record.payload, format=record.format)
        if status is BeginStatus.DEAD:
            return cls(status, error=record.last_error)
        return cls(status)

    def __repr__(self) -> str:
        until = "" if self.until is None else f" until={self.until.isoformat()}"
        return f"<Begun {self.status}{until}>"  # never the result


class BeginDecision(NamedTuple):
    """What a begin does with a record that has its key."""

    status: BeginStatus
    claims: bool = False
    """Acquired: claim the record under the next fence. False: the owner has the claim already."""


def decide_begin(begin: Begin, record: StoredMessage, hash_algorithm: str | None, now: datetime) -> BeginDecision:
    """Returns what `begin` does with a `record` that has its key, at the time `now`.

    `hash_algorithm`: that of the record.
    """
    # Only the content counts: after a rename of its handler, a record is still the same.
    if begin.draft.contradicts(record.hash, hash_algorithm, ""):
        return BeginDecision(BeginStatus.CONFLICT)
    if record.state is State.DONE:
        return BeginDecision(BeginStatus.PROCESSED)
    if record.state is State.DEAD:
        return BeginDecision(BeginStatus.DEAD)
    claim = record.claim
    if claim is not None and claim.until > now:
        return BeginDecision(BeginStatus.ACQUIRED if claim.owner == begin.owner else BeginStatus.BUSY)
    return BeginDecision(BeginStatus.ACQUIRED, claims=True)
