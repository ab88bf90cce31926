"""The memory store: the executable specification.

Every rule of the work queue stands here in the plainest form that is still fast enough to use. Other stores are
compared with this one, by the conformance suites and by random histories. It is safe to share between threads and
tasks: each verb holds one lock from start to end.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._kernel.policy import EXPIRED, cause_of_death, is_suspect
from postroom._kernel.program import Async, Sync, instant
from postroom.errors import AmbiguousMessageId, RoomClosed
from postroom.spi import (
    EARLY,
    Ask,
    Box,
    Claim,
    Clock,
    Counts,
    Draft,
    Ending,
    Features,
    Filter,
    Held,
    Key,
    Mark,
    Message,
    Purge,
    Reaped,
    Receipt,
    ReceiptStatus,
    Settlement,
    Sighting,
    State,
    StoredMessage,
    SystemClock,
    claimable_front,
    is_in_line,
    without_suspects,
)


@dataclass(slots=True, eq=False)
class Entry:
    """A message with its progress."""

    id: int
    draft: Draft
    first_seen: datetime
    last_seen: datetime
    expires: datetime | None
    state: State
    revision: int = 0
    available_at: int | None = None
    """Waiting: from when it may be claimed, or None behind the front of its group. Claimed: the end of the lease."""
    line: str | None = None
    """The FIFO group in whose line it stands, if any."""
    owner: UUID | None = None
    fence: int = 0
    attempt: int = 0
    deliveries: int = 0
    lost: int = 0
    """Leases in a row that were lost, as of the last claim or reap."""
    last_error: str | None = None
    stale: bool = False
    """Its content was replaced while it was claimed."""
    completed_at: datetime | None = None
    completed_by: UUID | None = None
    ending: Ending | None = None

    @property
    def topic(self) -> str:
        return self.draft.topic

    @property
    def lost_leases(self) -> int:
        """With the one that has passed, of an entry that is about to be claimed."""
        return self.lost + (self.state is State.CLAIMED)


@dataclass(slots=True)
class Shelf:
    """The messages of one box."""

    entries: dict[int, Entry] = field(default_factory=dict)
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    """Message id → source → the entry that holds this key now."""
    lines: dict[str, list[int]] = field(default_factory=dict)
    """Group → ids of its members in line, ascending."""
    collapsing: dict[str, set[int]] = field(default_factory=dict)
    ready: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (available_at, id). An entry that has changed since is ignored."""

    def holder(self, key: Key) -> Entry | None:
        id_ = self.keys.get(key.message_id, {}).get(key.source)
        return None if id_ is None else self.entries[id_]

    def drop_key(self, entry: Entry) -> None:
        sources = self.keys[entry.draft.message_id]
        if sources.get(entry.draft.source) == entry.id:
            del sources[entry.draft.source]
            if not sources:
                del self.keys[entry.draft.message_id]

    def offer(self, entry: Entry, at: int | None) -> None:
        """Say from when an entry may be claimed."""
        entry.available_at = at
        if at is not None:
            heapq.heappush(self.ready, (at, entry.id))

    def candidates(self, now: int, ask: Ask) -> Iterator[Entry]:
        """Entries whose time has come, in order. Those that are not changed by the caller are offered again."""
        topics = ask.topics
        kept: list[tuple[int, int]] = []
        try:
            while self.ready and self.ready[0][0] <= now:
                at, id_ = heapq.heappop(self.ready)
                entry = self.entries.get(id_)
                if entry is None or entry.available_at != at:
                    continue
                if (topics is None or entry.draft.topic in topics) and id_ not in ask.in_hand:
                    yield entry
                if entry.available_at == at:
                    kept.append((at, id_))
        finally:
            for pair in kept:
                heapq.heappush(self.ready, pair)

    def join_line(self, entry: Entry, group: str) -> None:
        entry.line = group
        bisect.insort(self.lines.setdefault(group, []), entry.id)

    def leave_line(self, entry: Entry) -> str | None:
        group, entry.line = entry.line, None
        if group is not None:
            members = self.lines[group]
            members.remove(entry.id)
            if not members:
                del self.lines[group]
        return group

    def line(self, group: str) -> Iterator[Entry]:
        return (self.entries[id_] for id_ in self.lines.get(group, ()))

    def first_in_line(self, group: str, now: int) -> Entry | None:
        return next((member for member in self.line(group) if is_in_line(member, now)), None)

    def promote(self, group: str | None, now: int) -> None:
        """Offer the first in line, if it waits only for its turn."""
        if group is None:
            return
        first = self.first_in_line(group, now)
        if first is not None and first.state is State.WAITING and first.available_at is None:
            self.offer(first, now)


class MemoryVerbs:
    """The verbs of both colours."""

    features = Features(durable=False, transactional=False)

    def __init__(self, *, name: str = "memory", clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._shelves: dict[str, Shelf] = {}
        self._orders: dict[str, bool] = {}
        """Box → whether it is recorded as FIFO."""
        self._last_id = 0
        self._closed = False

    @contextmanager
    def _open(self, box: Box) -> Iterator[tuple[Shelf, datetime, int]]:
        with self._lock:
            if self._closed:
                raise RoomClosed
            now = self._clock.now()
            yield self._shelves.setdefault(box.key, Shelf()), now, to_microseconds(now)

    @instant
    def boxes(self) -> list[str]:
        with self._lock:
            return sorted(key for key, shelf in self._shelves.items() if shelf.entries)

    @instant
    def record_order(self, box: Box, *, change: bool = False, tx: Any = None) -> bool | None:
        with self._open(box):
            if change:
                self._orders[box.key] = box.order.fifo
            return self._orders.setdefault(box.key, box.order.fifo)

    # -- put and record ------------------------------------------------------------------------------------------

    @instant
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> list[Receipt]:
        with self._open(box) as (shelf, now, _):
            return [self._put(box, shelf, draft, now) for draft in drafts]

    def _put(self, box: Box, shelf: Shelf, draft: Draft, now: datetime) -> Receipt:
        entry = self._known(box, shelf, draft.key, now)
        if entry is None:
            entry = self._insert(shelf, draft, now)
        conflict = _contradicts(draft, entry)
        if conflict and draft.on_conflict == "reject":
            return Receipt(ReceiptStatus.REJECTED, entry.id, *draft.key, entry.state)
        entry.last_seen = now
        if entry.state is not State.SEEN:
            return self._meet(box, shelf, entry, draft, now, conflict)
        entry.draft = draft
        superseded = self._collapse(shelf, draft, now)
        self._enter(box, shelf, entry, now)
        status = ReceiptStatus.CONFLICT if conflict else ReceiptStatus.NEW
        return Receipt(status, entry.id, *draft.key, entry.state, superseded, updated=conflict)

    def _known(self, box: Box, shelf: Shelf, key: Key, now: datetime) -> Entry | None:
        """Who holds the key: nobody, once the dedup window of the earlier message has passed."""
        entry = shelf.holder(key)
        window = box.keeping.dedup_window
        if entry is not None and window is not None and entry.first_seen + window <= now:
            shelf.drop_key(entry)
            return None
        return entry

    def _insert(self, shelf: Shelf, draft: Draft, now: datetime) -> Entry:
        self._last_id += 1
        entry = Entry(self._last_id, draft, now, now, draft.expires, State.SEEN)
        shelf.entries[entry.id] = entry
        shelf.keys.setdefault(draft.message_id, {})[draft.source] = entry.id
        return entry

    def _enter(self, box: Box, shelf: Shelf, entry: Entry, now: datetime) -> None:
        """Seen → waiting: the message takes its place in the queue."""
        draft = entry.draft
        entry.state = State.WAITING
        entry.expires = draft.expires or (now + draft.lifetime if draft.lifetime else None)
        at = to_microseconds(now)
        if draft.due is not None and draft.due > now:
            at = to_microseconds(draft.due)
            shelf.offer(entry, at)
            entry.fence = EARLY if box.order.fifo and draft.group is not None else 0
        elif box.order.fifo and draft.group is not None and self._someone_ahead(shelf, entry, draft.group, at):
            entry.available_at = None
        else:
            shelf.offer(entry, at)
        if box.order.fifo and draft.group is not None:
            shelf.join_line(entry, draft.group)
        if draft.collapse_key is not None:
            shelf.collapsing.setdefault(draft.collapse_key, set()).add(entry.id)

    def _someone_ahead(self, shelf: Shelf, entry: Entry, group: str, now: int) -> bool:
        return any(member.id < entry.id and is_in_line(member, now) for member in shelf.line(group))

    def _collapse(self, shelf: Shelf, draft: Draft, now: datetime) -> tuple[int, ...]:
        if draft.collapse_key is None:
            return ()
        rivals = sorted(shelf.collapsing.get(draft.collapse_key, ()))
        older = [entry for entry in map(shelf.entries.__getitem__, rivals) if entry.state is State.WAITING]
        for entry in older:
            self._finish(shelf, entry, Ending.SUPERSEDED, now, by=None)
        return tuple(entry.id for entry in older)

    def _meet(self, box: Box, shelf: Shelf, entry: Entry, draft: Draft, now: datetime, conflict: bool) -> Receipt:
        """A key that is known, and not only seen."""
        status = {State.DONE: ReceiptStatus.DONE, State.DEAD: ReceiptStatus.DEAD}.get(
            entry.state, ReceiptStatus.DUPLICATE
        )
        updated = entry.state is not State.DONE and draft.replaces(conflict=conflict)
        under_lease = updated and self._replace(shelf, entry, draft, now)
        if entry.state is State.DEAD and draft.revive_dead:
            self._revive(box, shelf, entry, to_microseconds(now))
            status = ReceiptStatus.REVIVED
        elif conflict:
            status = ReceiptStatus.CONFLICT
        return Receipt(status, entry.id, *draft.key, entry.state, (), under_lease, updated)

    def _replace(self, shelf: Shelf, entry: Entry, draft: Draft, now: datetime) -> bool:
        """New content, old place: group and collapse key stay, and so does whatever a worker has begun."""
        old = entry.draft
        changed = (old.topic, old.payload, old.format, old.hash) != (
            draft.topic,
            draft.payload,
            draft.format,
            draft.hash,
        )
        entry.draft = draft._replace(group=old.group, collapse_key=old.collapse_key, received_at=old.received_at)
        if draft.expires is not None:
            entry.expires = draft.expires
        entry.revision += changed
        if entry.state is State.WAITING:
            self._reschedule(shelf, entry, draft.due, to_microseconds(now))
        claimed = entry.state is State.CLAIMED and changed
        entry.stale = entry.stale or claimed
        return claimed

    def _reschedule(self, shelf: Shelf, entry: Entry, due: datetime | None, now: int) -> None:
        at = entry.available_at
        due_at = None if due is None else to_microseconds(due)
        if entry.fence > 0:
            # It has been tried: a new due time may add to its backoff, never shorten it.
            if due_at is not None and due_at > now:
                shelf.offer(entry, max(at or 0, due_at))
        elif due_at is not None and due_at > now:
            shelf.offer(entry, due_at)
            entry.fence = 0 if entry.line is None else EARLY
        elif at is not None and at > now:
            shelf.offer(entry, now)
            entry.fence = 0
        shelf.promote(entry.line, now)

    @instant
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> list[Sighting]:
        with self._open(box) as (shelf, now, _):
            return [self._record(box, shelf, draft, now) for draft in drafts]

    def _record(self, box: Box, shelf: Shelf, draft: Draft, now: datetime) -> Sighting:
        entry = self._known(box, shelf, draft.key, now)
        if entry is None:
            self._insert(shelf, draft, now)
            return Sighting(State.SEEN, is_new=True, conflict=False)
        if entry.state is not State.DONE:
            entry.last_seen = now
            if entry.draft.hash is None and draft.hash is not None:
                entry.draft = entry.draft._replace(hash=draft.hash, hash_algorithm=draft.hash_algorithm)
        return Sighting(entry.state, is_new=False, conflict=_contradicts(draft, entry))

    # -- claim, renew and reap -----------------------------------------------------------------------------------

    @instant
    def claim(self, box: Box, ask: Ask, *, tx: Any = None) -> list[StoredMessage]:
        taken: list[Entry] = []
        with self._open(box) as (shelf, now_at, now):
            until = to_microseconds(now_at + ask.lease)
            suspected, alone = partial(_is_suspect, box), False
            for candidate in shelf.candidates(now, ask):
                front = [candidate]
                if not _is_plain(box, candidate):
                    front = self._front(box, shelf, candidate, now_at, ask, ask.limit - len(taken))
                    front, alone = without_suspects(front, suspected, is_first=ask.suspects and not taken)
                    if front:
                        # The worker that held the group before has lost all of it, not only what is taken now.
                        self._end_batch(shelf, front[-1])
                for entry in front:
                    entry.lost = entry.lost_leases
                    entry.state, entry.owner, entry.stale = State.CLAIMED, ask.owner, False
                    entry.fence = max(entry.fence, 0) + 1
                    entry.deliveries += 1
                    shelf.offer(entry, until)
                if candidate not in front:
                    self._let_sleep(shelf, candidate, now)
                taken += front
                if alone or len(taken) == ask.limit:
                    break
            return [_message(entry) for entry in taken]

    def _front(self, box: Box, shelf: Shelf, candidate: Entry, now_at: datetime, ask: Ask, limit: int) -> list[Entry]:
        """What can be claimed at a candidate: itself, or the front of its group. The dead are buried on the way."""
        now = to_microseconds(now_at)
        group = candidate.line  # which it leaves if it is buried, and the group goes on all the same
        while True:
            if group is None:
                front = [candidate] if candidate.available_at is not None else []
            elif any(_holds(member, ask, now) for member in shelf.line(group)):
                front = []
            else:
                front = claimable_front(shelf.line(group), now, limit, ask.topics)
            doomed = next(((entry, cause) for entry in front if (cause := _cause_of_death(box, entry, now))), None)
            if doomed is None:
                break
            self._bury(box, shelf, doomed[0], doomed[1], now_at)
        return front

    def _let_sleep(self, shelf: Shelf, entry: Entry, now: int) -> None:
        """Not its turn: it waits until the front of its group moves on. The first in line is the front, and stays."""
        if entry.line is not None and shelf.first_in_line(entry.line, now) is not entry:
            self._back_in_line(entry)

    def _back_in_line(self, entry: Entry) -> None:
        if entry.state in {State.WAITING, State.CLAIMED}:
            entry.state, entry.owner, entry.available_at = State.WAITING, None, None
            entry.fence = max(entry.fence, 0)

    @instant
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> list[bool]:
        with self._open(box) as (shelf, now, _):
            until = to_microseconds(now + lease)
            held = [self._held_by(shelf, claim) for claim in claims]
            for entry in held:
                if entry is not None:
                    shelf.offer(entry, until)
            return [entry is not None for entry in held]

    @instant
    def reap(self, box: Box, limit: int) -> Reaped:
        with self._open(box) as (shelf, now_at, now):
            late = sorted(
                (e for e in shelf.entries.values() if e.state is State.CLAIMED and (e.available_at or 0) <= now),
                key=lambda entry: (entry.available_at, entry.id),
            )[:limit]
            for entry in late:
                entry.lost = entry.lost_leases
                entry.state, entry.owner = State.WAITING, None
            expired = sorted(
                (
                    e
                    for e in shelf.entries.values()
                    if e.state is State.WAITING and e.expires is not None and e.expires <= now_at
                ),
                key=lambda entry: (entry.expires, entry.id),
            )[:limit]
            for entry in expired:
                self._bury(box, shelf, entry, EXPIRED, now_at)
            return Reaped(len(late), len(expired))

    # -- settle and mark -----------------------------------------------------------------------------------------

    @instant
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        with self._open(box) as (shelf, now, _):
            successes: list[tuple[int, Entry, Settlement]] = []
            others: list[tuple[int, Entry, Settlement]] = []
            for index, settlement in enumerate(settlements):
                entry = self._resolve(shelf, settlement.target)
                if entry is not None:
                    succeeds = _succeeds(box, entry, settlement)
                    (successes if succeeds else others).append((index, entry, settlement))
            # What is not a success comes first, from the back: it ends the batches of its groups, so that a success
            # further behind in the same line no longer holds. Giving a whole batch back then keeps every item.
            others.sort(key=lambda item: -item[1].id)
            kept = [False] * len(settlements)
            for index, entry, settlement in others + successes:
                if self._still_held(entry, settlement.target):
                    self._settle(box, shelf, entry, settlement, now)
                    kept[index] = True
            return kept

    def _resolve(self, shelf: Shelf, target: Claim | Held) -> Entry | None:
        if isinstance(target, Claim):
            return shelf.entries.get(target.id)
        sources = shelf.keys.get(target.message_id, {})
        if target.source is not None:
            return shelf.holder(Key(target.source, target.message_id))
        if len(sources) > 1:
            raise AmbiguousMessageId
        return next((shelf.entries[id_] for id_ in sources.values()), None)

    def _still_held(self, entry: Entry, target: Claim | Held) -> bool:
        if entry.state is not State.CLAIMED or not (entry.owner is target.owner or entry.owner == target.owner):
            return False
        return isinstance(target, Held) or entry.fence == target.fence

    def _held_by(self, shelf: Shelf, claim: Claim) -> Entry | None:
        entry = shelf.entries.get(claim.id)
        return entry if entry is not None and self._still_held(entry, claim) else None

    def _settle(self, box: Box, shelf: Shelf, entry: Entry, settlement: Settlement, now: datetime) -> None:
        verdict, delay = settlement.verdict, settlement.delay
        if _succeeds(box, entry, settlement):
            self._finish(shelf, entry, Ending.HANDLED, now, by=entry.owner, blank=box.keeping.on_success == "delete")
            return
        self._end_batch(shelf, entry)
        if verdict == "dead":
            entry.attempt += settlement.counts
            self._bury(box, shelf, entry, settlement.error or "", now)
            return
        if verdict == "retry":
            entry.attempt += 1
            if settlement.error is not None:
                entry.last_error = settlement.error
            delay = box.delivery.backoff.delay(entry.attempt) if delay is None else delay
        self._wait(shelf, entry, now, delay)

    def _wait(self, shelf: Shelf, entry: Entry, now: datetime, delay: timedelta | None) -> None:
        entry.state, entry.owner, entry.lost = State.WAITING, None, 0
        if entry.line is not None and not delay:
            entry.available_at = None
        else:
            shelf.offer(entry, to_microseconds(now + (delay or timedelta())))
        shelf.promote(entry.line, to_microseconds(now))

    def _end_batch(self, shelf: Shelf, entry: Entry) -> None:
        """The first outcome that is not success ends a group's batch: what stands behind is given back uncounted."""
        if entry.line is not None:
            for member in shelf.line(entry.line):
                if member.id > entry.id and member.state is State.CLAIMED:
                    self._back_in_line(member)

    def _leave(self, shelf: Shelf, entry: Entry, now: datetime, *, stay_in_line: bool = False) -> None:
        """Out of the queue: nobody holds it, nobody may claim it, and its group goes on."""
        entry.owner = entry.available_at = None
        if entry.draft.collapse_key is not None:
            shelf.collapsing.get(entry.draft.collapse_key, set()).discard(entry.id)
        if entry.line is not None and not stay_in_line:
            shelf.promote(shelf.leave_line(entry), to_microseconds(now))

    def _finish(
        self, shelf: Shelf, entry: Entry, ending: Ending, now: datetime, *, by: UUID | None, blank: bool = False
    ) -> None:
        entry.state, entry.ending, entry.completed_at, entry.completed_by = State.DONE, ending, now, by
        entry.lost = 0
        if blank:
            entry.draft = entry.draft._replace(payload="", format="text", headers=None)
        self._leave(shelf, entry, now)

    def _bury(self, box: Box, shelf: Shelf, entry: Entry, error: str, now: datetime) -> None:
        entry.last_error = error
        if box.keeping.dead_letter == "discard":
            self._finish(shelf, entry, Ending.DISCARDED, now, by=None, blank=True)
        else:
            entry.state, entry.completed_at, entry.fence = State.DEAD, now, max(entry.fence, 0)
            self._leave(shelf, entry, now, stay_in_line=box.order.on_dead == "block")

    @instant
    def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Any = None
    ) -> list[bool]:
        with self._open(box) as (shelf, now, _):
            return [self._mark(box, shelf, key, mark, error or "", now) for key in keys]

    def _mark(self, box: Box, shelf: Shelf, key: Key, mark: Mark, error: str, now: datetime) -> bool:
        entry = self._known(box, shelf, key, now)
        if entry is None and mark == "processed":
            entry = self._insert(shelf, Draft(*key), now)
        if entry is None or entry.state is State.DONE:
            return False
        if mark == "processing":
            if entry.state is not State.SEEN:
                return False
            self._enter(box, shelf, entry, now)
        elif mark == "skipped":
            if not _blocks(entry):
                return False
            shelf.promote(shelf.leave_line(entry), to_microseconds(now))
        elif mark == "processed":
            self._finish(shelf, entry, Ending.MARKED, now, by=None, blank=box.keeping.on_success == "delete")
        elif entry.state is not State.DEAD:
            self._end_batch(shelf, entry)
            self._bury(box, shelf, entry, error, now)
        else:
            return False
        return True

    @instant
    def cancel(self, box: Box, which: Filter, *, tx: Any = None) -> list[Key]:
        with self._open(box) as (shelf, now, _):
            waiting = self._matching(shelf, which._replace(states=frozenset({State.WAITING})))
            for entry in waiting:
                self._finish(shelf, entry, Ending.CANCELLED, now, by=None, blank=box.keeping.on_success == "delete")
            return [entry.draft.key for entry in waiting]

    # -- replay and purge ----------------------------------------------------------------------------------------

    @instant
    def replay(self, box: Box, which: Filter, *, tx: Any = None) -> list[Key]:
        with self._open(box) as (shelf, _, now):
            dead = self._matching(shelf, which._replace(states=frozenset({State.DEAD})))
            for entry in dead:
                self._revive(box, shelf, entry, now)
            return [entry.draft.key for entry in dead]

    def _revive(self, box: Box, shelf: Shelf, entry: Entry, now: int) -> None:
        """Dead → waiting, in its old place. The fence goes on: a claim from its former life proves nothing."""
        entry.state, entry.completed_at, entry.expires = State.WAITING, None, None
        entry.attempt = entry.deliveries = entry.lost = 0
        entry.fence = max(entry.fence, 1)  # it has had its turn: it stays in line, whatever due time it gets
        if entry.draft.collapse_key is not None:
            shelf.collapsing.setdefault(entry.draft.collapse_key, set()).add(entry.id)
        if box.order.fifo and entry.draft.group is not None:
            if entry.line is None:
                shelf.join_line(entry, entry.draft.group)
            entry.available_at = None
            shelf.promote(entry.line, now)
        else:
            shelf.offer(entry, now)

    @instant
    def purge(self, box: Box, purge: Purge) -> int:
        with self._open(box) as (shelf, now, now_us):
            old = [e for e in shelf.entries.values() if purge.takes(e, box.keeping, now)]
            if purge.state is State.DONE:
                old.sort(key=lambda entry: (entry.completed_at, entry.id))
            old = old[: purge.limit]
            for entry in old:
                shelf.promote(shelf.leave_line(entry), now_us)
                if shelf.holder(entry.draft.key) is entry:
                    shelf.drop_key(entry)
                del shelf.entries[entry.id]
            return len(old)

    # -- find and counts -----------------------------------------------------------------------------------------

    @instant
    def find(self, box: Box, which: Filter) -> list[StoredMessage]:
        with self._open(box) as (shelf, _, _):
            return [_message(entry) for entry in self._matching(shelf, which)]

    def _matching(self, shelf: Shelf, which: Filter) -> list[Entry]:
        by_ids = which.ids is not None and which.keys is None
        named = sorted(shelf.entries.keys() & set(which.ids or ())) if by_ids else None
        among = shelf.entries.values() if named is None else map(shelf.entries.__getitem__, named)
        fitting = (entry for entry in among if which.fits(_message(entry)) and (not which.blocking or _blocks(entry)))
        return list(itertools.islice(fitting, which.limit))

    @instant
    def counts(self, box: Box) -> Counts:
        with self._open(box) as (shelf, _, _):
            count = Counter(entry.state for entry in shelf.entries.values())
            return {state: count[state] for state in State}

    @instant
    def close(self) -> None:
        self._closed = True


class MemoryStore(MemoryVerbs, Async):
    """For async code."""


class SyncMemoryStore(MemoryVerbs, Sync):
    """For sync code."""


def _contradicts(draft: Draft, entry: Entry) -> bool:
    known = entry.draft
    return draft.contradicts(known.hash, known.hash_algorithm, known.topic)


def _blocks(entry: Entry) -> bool:
    return entry.state is State.DEAD and entry.line is not None


def _succeeds(box: Box, entry: Entry, settlement: Settlement) -> bool:
    """An ack of content that has changed meanwhile is none, where the box says so: the message is given back."""
    outdated = entry.stale and box.delivery.on_stale_ack == "requeue"
    return settlement.verdict == "done" and not outdated


def _is_plain(box: Box, entry: Entry) -> bool:
    """Whether a ready entry can be claimed without a look at anything else: no group, no limit that it may reach."""
    return (
        entry.line is None
        and entry.expires is None
        and not entry.lost_leases
        and box.delivery.max_deliveries is None
        and entry.available_at is not None
    )


def _holds(entry: Entry, ask: Ask, now: int) -> bool:
    """Whether it keeps its group from a claim: by a lease that has not passed, or because the caller still has it."""
    return entry.state is State.CLAIMED and ((entry.available_at or 0) > now or entry.id in ask.in_hand)


def _is_suspect(box: Box, entry: Entry) -> bool:
    return is_suspect(box, deliveries=entry.deliveries, lost_leases=entry.lost_leases)


def _cause_of_death(box: Box, entry: Entry, now: int) -> str | None:
    expires = None if entry.expires is None else to_microseconds(entry.expires)
    lost = entry.lost_leases
    return cause_of_death(box, deliveries=entry.deliveries, lost_leases=lost, expires=expires, now=now)


def _message(entry: Entry) -> StoredMessage:
    draft, claim = entry.draft, None
    if entry.state is State.CLAIMED and entry.owner is not None and entry.available_at is not None:
        claim = Claim(entry.id, entry.owner, entry.fence, from_microseconds(entry.available_at))
    # Its constructor would cost as much again: this runs for every message that is claimed.
    return tuple.__new__(
        Message,
        (
            entry.id,
            draft.source,
            draft.message_id,
            draft.topic,
            draft.payload,
            draft.format,
            draft.headers or {},
            draft.correlation_id,
            draft.group,
            draft.collapse_key,
            draft.hash,
            draft.due,
            entry.expires,
            draft.received_at,
            entry.first_seen,
            entry.last_seen,
            entry.revision,
            entry.state,
            entry.attempt,
            entry.deliveries,
            entry.last_error,
            claim,
            entry.completed_at,
            entry.completed_by,
            entry.ending,
            entry.lost,
            None,
        ),
    )
