"""The messages of one box in memory, and the indexes on them."""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from postroom._kernel.joins import JoinStatus
from postroom._stores.memory.entry import Entry
from postroom._stores.memory.join_state import JoinState
from postroom.spi import ClaimRequest, Key, State, is_in_line


@dataclass(slots=True)
class BoxState:
    """The messages of one box."""

    entries: dict[int, Entry] = field(default_factory=dict)
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    """Message id → source → the id of the entry that has this key now."""
    lines: dict[str, list[int]] = field(default_factory=dict)
    """Group → the ids of its members in line, ascending."""
    collapsing: dict[str, set[int]] = field(default_factory=dict)
    """Collapse key → the ids of entries in the queue that have it."""
    ready: dict[datetime, deque[int]] = field(default_factory=dict)
    """`available_at` → ids, ascending. An id is ignored if the `available_at` of its entry has changed since."""
    times: list[datetime] = field(default_factory=list)
    """The keys of `ready`, as a heap. Messages that are put or claimed together share one."""
    joins: dict[UUID, JoinState] = field(default_factory=dict)
    """In the order in which they were started."""
    joins_of: dict[int, list[JoinState]] = field(default_factory=dict)
    """Message → the joins of which it is a step."""

    # -- keys ------------------------------------------------------------------------------------------------------

    def find_key(self, key: Key) -> Entry | None:
        """Returns the entry that has this key now."""
        id_ = self.keys.get(key.message_id, {}).get(key.source)
        return None if id_ is None else self.entries[id_]

    def free_key(self, entry: Entry) -> None:
        """Lets a new message have the key of this entry, if it still has it."""
        sources = self.keys.get(entry.draft.message_id, {})
        if sources.get(entry.draft.source) == entry.id:
            del sources[entry.draft.source]
            if not sources:
                del self.keys[entry.draft.message_id]

    # -- times -----------------------------------------------------------------------------------------------------

    def offer(self, entry: Entry, available_at: datetime | None, delayed: bool = False) -> None:
        """Sets when an entry can be claimed. None: when it becomes the first of its line."""
        entry.available_at = available_at
        entry.delayed = delayed
        if available_at is not None:
            self._add(available_at, entry.id)

    def _add(self, available_at: datetime, *ids: int) -> None:
        """Adds ids, ascending, to those that are ready from a time on."""
        known = self.ready.get(available_at)
        if known is None:
            self.ready[available_at] = deque(ids)
            heapq.heappush(self.times, available_at)
        elif not known or known[-1] < ids[0]:  # nearly always
            known.extend(ids)
        else:
            for id_ in ids:
                bisect.insort(known, id_)

    def lease(self, entry: Entry, owner: UUID, until: datetime) -> None:
        """Waiting or claimed → claimed. A lease that the entry has is lost. `leased` must follow."""
        if entry.state is State.CLAIMED:
            entry.lost_leases += 1
        entry.state, entry.owner = State.CLAIMED, owner
        entry.stale = entry.delayed = False
        entry.fence += 1
        entry.deliveries += 1
        entry.available_at = until

    def leased(self, entries: Sequence[Entry], until: datetime) -> None:
        """Lets a claim find these entries after the end of their leases."""
        if entries:
            self._add(until, *sorted([entry.id for entry in entries]))

    def candidates(self, request: ClaimRequest, now: datetime) -> Iterator[Entry]:
        """Yields the entries that are ready, oldest first. An entry that the caller does not change stays ready."""
        times, entries, topics, in_hand = self.times, self.entries, request.topics, request.in_hand
        unchanged: list[tuple[datetime, int]] = []
        try:
            while times and times[0] <= now:
                available_at = times[0]
                ids = self.ready[available_at]
                while ids:
                    id_ = ids.popleft()
                    entry = entries.get(id_)
                    if entry is None or entry.available_at != available_at:
                        continue
                    fits = topics is None or entry.draft.topic in topics or entry.waits_for is not None
                    if fits and id_ not in in_hand:
                        yield entry
                    if entry.available_at == available_at:
                        unchanged.append((available_at, id_))
                heapq.heappop(times)  # the same: a claim offers nothing at an earlier time
                del self.ready[available_at]
        finally:
            for item in unchanged:
                self._add(*item)

    def next_time(self) -> datetime | None:
        """Returns the earliest `available_at` of all entries. Removes what is not valid before it."""
        while self.times:
            available_at = self.times[0]
            ids = self.ready[available_at]
            while ids:
                entry = self.entries.get(ids[0])
                if entry is not None and entry.available_at == available_at:
                    return available_at
                ids.popleft()
            heapq.heappop(self.times)
            del self.ready[available_at]
        return None

    # -- joins -----------------------------------------------------------------------------------------------------

    def step_ended(self, entry: Entry, now: datetime) -> None:
        """After a message has ended on which a join waits."""
        entry.watched = False
        for join in self.joins_of[entry.id]:
            self.wake_continuation(join, now)

    def wake_continuation(self, join: JoinState, now: datetime) -> None:
        """Lets the next claim look at a join."""
        wait = None if join.wait_id is None else self.entries.get(join.wait_id)
        if wait is not None and wait.waits_for is not None and wait.state is State.WAITING:
            self.offer(wait, now)

    def replace_step(self, old: Entry, new: int) -> None:
        """Puts a message in the place of one that it supersedes, in joins of which it is not, or becomes, a step."""
        joins = self.joins_of.get(old.id, [])
        for join in joins.copy():
            becomes_step = self.entries[new].draft.join == join.draft.id
            if join.status is JoinStatus.PENDING and new not in join.steps and not becomes_step:
                join.steps[new] = join.steps.pop(old.id)
                joins.remove(join)
                self.joins_of.setdefault(new, []).append(join)
                self.entries[new].watched |= old.watched

    # -- FIFO lines ------------------------------------------------------------------------------------------------

    def join_line(self, entry: Entry, group: str) -> None:
        entry.line = group
        bisect.insort(self.lines.setdefault(group, []), entry.id)

    def leave_line(self, entry: Entry, now: datetime) -> None:
        """Removes an entry from its line, if it is in one. The next member becomes the first."""
        group, entry.line = entry.line, None
        if group is None:
            return
        members = self.lines[group]
        members.remove(entry.id)
        if members:
            self.promote(group, now)
        else:
            del self.lines[group]

    def line(self, group: str) -> Iterator[Entry]:
        """Yields the members of a line, in id order."""
        return (self.entries[id_] for id_ in self.lines.get(group, ()))

    def first_in_line(self, group: str, now: datetime) -> Entry | None:
        return next((member for member in self.line(group) if is_in_line(member, now)), None)

    def promote(self, group: str, now: datetime) -> None:
        """Offers the first in line, if it waits only for its turn."""
        first = self.first_in_line(group, now)
        if first is not None and first.state is State.WAITING and first.available_at is None:
            self.offer(first, now)
