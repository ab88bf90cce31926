"""A message of the memory store, with its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from uuid import UUID

from postroom._kernel.fields import DRAFT_LABELS, labels_of
from postroom._kernel.message import Format
from postroom.spi import Claim, Draft, Ending, Message, Result, State, StoredMessage

_before_labels: Callable[[Draft], tuple[str, str, str, str | bytes, Format, Mapping[str, str] | None]] = itemgetter(
    slice(DRAFT_LABELS.start)
)
"""Returns the fields of a draft from its source to its headers."""
_after_labels: Callable[
    [Draft], tuple[bytes | None, str, datetime | None, datetime | None, timedelta | None, datetime | None]
] = itemgetter(slice(DRAFT_LABELS.stop, Draft._fields.index("received_at") + 1))
"""Returns the fields of a draft from its hash to `received_at`."""


@dataclass(slots=True, eq=False)
class Entry:
    """A message with its progress."""

    id: int
    draft: Draft
    """The content."""
    first_seen: datetime
    last_seen: datetime
    expires: datetime | None
    state: State
    revision: int = 0
    available_at: datetime | None = None
    """Waiting: the time from which it can be claimed, or None while it sleeps behind the first in line. Claimed: the
    end of the lease."""
    delayed: bool = False
    """It is in line only from `available_at` on: it has a due time and was not claimed since."""
    line: str | None = None
    """The FIFO group in whose line it is, if any."""
    owner: UUID | None = None
    fence: int = 0
    attempt: int = 0
    deliveries: int = 0
    lost_leases: int = 0
    """Leases lost in a row, without the one that it has now."""
    last_error: str | None = None
    stale: bool = False
    """Its content was replaced while it was claimed."""
    waits_for: UUID | None = None
    """The join whose end it waits for. It is not claimed before."""
    is_continuation: bool = False
    watched: bool = False
    """A join waits for its end."""
    completed_at: datetime | None = None
    completed_by: UUID | None = None
    ending: Ending | None = None

    @property
    def topic(self) -> str:
        return self.draft.topic

    @property
    def blocks_its_group(self) -> bool:
        return self.state is State.DEAD and self.line is not None

    def count_lost_leases(self) -> int:
        """Returns the lost leases of an entry that can be claimed. A lease on it has passed, and counts too."""
        return self.lost_leases + (self.state is State.CLAIMED)

    def contradicts(self, draft: Draft) -> bool:
        """Returns True if a draft with the same key has another topic or another content hash."""
        return draft.contradicts(self.draft.hash, self.draft.hash_algorithm, self.draft.topic)

    def erase_content(self) -> None:
        """Removes payload and headers. The key stays, since it recognises duplicates."""
        self.draft = self.draft._replace(payload="", format="text", headers=None)

    def keep_result(self, result: Result) -> None:
        """Makes the result of its handler the payload."""
        self.draft = self.draft._replace(payload=result.payload, format=result.format)

    def to_message(self) -> StoredMessage:
        draft, claim = self.draft, None
        if self.state is State.CLAIMED:
            claim = tuple.__new__(Claim, (self.id, self.owner, self.fence, self.available_at))
        # This runs for every message that is claimed. A slice and tuple.__new__ take half the time of attributes and
        # constructors.
        source, message_id, topic, payload, format_, headers = _before_labels(draft)
        hash_, _, due, _, _, received_at = _after_labels(draft)
        head = (self.id, source, message_id, topic, payload, format_, headers or {})
        tail = (
            hash_,
            due,
            self.expires,
            received_at,
            self.first_seen,
            self.last_seen,
            self.revision,
            self.state,
            self.attempt,
            self.deliveries,
            self.last_error,
            claim,
            self.completed_at,
            self.completed_by,
            self.ending,
            self.lost_leases,
            None,
        )
        return tuple.__new__(Message, head + labels_of(draft) + tail)
