"""The parameters and results of claims, filters, purges and reaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from postroom._kernel.message import AnyMessage, Key
from postroom._kernel.policy import Retention
from postroom._kernel.states import State


class ClaimRequest(NamedTuple):
    """The parameters of a claim."""

    owner: UUID
    lease: timedelta
    limit: int
    topics: frozenset[str] | None = None
    """Claim only these topics. None: any topic."""
    in_hand: tuple[int, ...] = ()
    """Ids that the caller still works on. They are not claimed again, even if their leases have passed."""
    suspects: bool = True
    """Whether the claim may take a suspect: a message that keeps losing its lease. A suspect is claimed alone."""
    expect: Callable[[float], None] | None = None
    """Called with the seconds after which another claim may find more, if the store knows that."""


class Filter(NamedTuple):
    """Selects messages. A field that is None does not restrict. Results are in id order, with ids above `after`."""

    states: frozenset[State] | None = None
    ids: tuple[int, ...] | None = None
    topic: str | None = None
    source: str | None = None
    message_id: str | None = None
    group: str | None = None
    correlation_id: str | None = None
    after: int = 0
    limit: int = 100
    blocking: bool = False
    """Only dead letters that block their group (`on_dead="block"`)."""
    keys: tuple[Key, ...] | None = None
    """Only messages with these keys; together with `ids`, messages that either of them names."""

    @property
    def is_by_name(self) -> bool:
        """Returns True if it names messages by id or key, so that an index finds each of them."""
        return self.ids is not None or self.keys is not None or self.message_id is not None

    def names(self, id_: int, key: Key) -> bool:
        """Returns True if `ids` and `keys` allow this message."""
        if self.ids is None and self.keys is None:
            return True
        return id_ in (self.ids or ()) or key in (self.keys or ())

    def fits(self, message: AnyMessage) -> bool:
        """Returns True if the filter selects this message. `blocking` and `limit` are left to the store."""
        return (
            message.id > self.after
            and (self.states is None or message.state in self.states)
            and self.names(message.id, message.key)
            and self.topic in {None, message.topic}
            and self.source in {None, message.source}
            and self.message_id in {None, message.message_id}
            and self.group in {None, message.group}
            and self.correlation_id in {None, message.correlation_id}
        )


class PurgeCandidate(Protocol):
    """What a purge reads of a message."""

    @property
    def state(self) -> State: ...
    @property
    def first_seen(self) -> datetime: ...
    @property
    def last_seen(self) -> datetime: ...
    @property
    def completed_at(self) -> datetime | None: ...


class Purge(NamedTuple):
    """Deletes messages of one state: at most `limit` of those that are older than `older_than`."""

    state: State
    older_than: timedelta
    limit: int = 1000

    def takes(self, message: PurgeCandidate, retention: Retention, now: datetime) -> bool:
        """Returns True if the purge deletes this message."""
        if message.state is not self.state:
            return False
        window = retention.dedup_window
        if self.state is State.DONE and window is not None and message.first_seen + window > now:
            return False  # a purge must not shorten the deduplication window
        cutoff = now - self.older_than
        if message.completed_at is not None and message.completed_at > cutoff:
            return False
        sliding = self.state is State.SEEN or (self.state is State.DONE and retention.age_from == "last_seen")
        return not sliding or message.last_seen <= cutoff


class Reaped(NamedTuple):
    """The result of a reap."""

    freed: int
    """Messages whose lease had passed, now waiting again."""
    expired: int
    """Messages past `expires`, now dead."""


class Attendance(NamedTuple):
    """The result of `attend`."""

    due: Mapping[str, float]
    """By the key of a box: the seconds until a message may be claimable. Zero or less: it is due, since so many
    seconds. A box in which no message waits for a time or is claimed is missing."""
    free_in: float | None
    """None: the process has the soft lease. Otherwise: the seconds until the lease of another process ends."""


Counts = Mapping[State, int]
"""The number of messages in each state. Every state is a key."""
