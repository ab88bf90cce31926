"""The questions that stores answer, as values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from postroom._kernel.message import AnyMessage, Key
from postroom._kernel.policy import Keeping
from postroom._kernel.states import State


class Ask(NamedTuple):
    """What a worker asks of a claim."""

    owner: UUID
    lease: timedelta
    limit: int
    topics: frozenset[str] | None = None
    """Only these topics; None is any."""
    in_hand: tuple[int, ...] = ()
    """Ids that the caller still works on: they are not handed out to it again, though their leases may have passed."""
    suspects: bool = True
    """Whether a message that keeps losing its lease may be claimed. It is claimed alone."""


class Filter(NamedTuple):
    """Which messages. What is None does not restrict; results come in id order, after `after`."""

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
    """Only dead letters that hold up their group (`on_dead="block"`)."""
    keys: tuple[Key, ...] | None = None
    """With `ids`: messages that either of them names."""

    @property
    def is_by_name(self) -> bool:
        """Whether it names its messages, so that they can be looked up one by one."""
        return self.ids is not None or self.keys is not None or self.message_id is not None

    def names(self, id_: int, key: Key) -> bool:
        if self.ids is None and self.keys is None:
            return True
        return id_ in (self.ids or ()) or key in (self.keys or ())

    def fits(self, message: AnyMessage) -> bool:
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


class Aging(Protocol):
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
    """Which messages of one state to delete: at most `limit` of those that are older."""

    state: State
    older_than: timedelta
    limit: int = 1000

    def takes(self, message: Aging, keeping: Keeping, now: datetime) -> bool:
        """Whether it deletes this message."""
        if message.state is not self.state:
            return False
        window = keeping.dedup_window
        if self.state is State.DONE and window is not None and message.first_seen + window > now:
            return False  # cleaning up must not shorten the memory that deduplicates
        cutoff = now - self.older_than
        if message.completed_at is not None and message.completed_at > cutoff:
            return False
        sliding = self.state is State.SEEN or (self.state is State.DONE and keeping.retention_from == "last_seen")
        return not sliding or message.last_seen <= cutoff


class Reaped(NamedTuple):
    """What a reap found."""

    freed: int
    """Leases that had passed."""
    expired: int
    """Messages past their `expires`, now dead."""


Counts = Mapping[State, int]
"""How many messages stand in each state; every state is a key."""
