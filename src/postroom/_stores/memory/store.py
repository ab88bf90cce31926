"""The verbs of the memory store. It can be shared by threads and tasks."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from postroom._kernel.program import Async, Sync, instant
from postroom._stores.memory import transitions
from postroom._stores.memory.arrivals import IdSequence, find_known, insert, put_draft, record_key
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.claims import claim_entries, reap_box, renew_leases
from postroom._stores.memory.entry import Entry
from postroom._stores.memory.settlements import mark_entry, settle_claims
from postroom.errors import RoomClosed
from postroom.spi import (
    Box,
    Claim,
    ClaimRequest,
    Clock,
    Counts,
    Draft,
    Ending,
    Features,
    Filter,
    Key,
    KeyStatus,
    Mark,
    Purge,
    Reaped,
    Receipt,
    Settlement,
    State,
    StoredMessage,
    SystemClock,
    Tx,
)


class MemoryVerbs:
    """The verbs of both modes. Each holds the lock of the store from start to end."""

    features = Features(durable=False, transactional=False)

    def __init__(self, *, name: str = "memory", clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._boxes: dict[str, BoxState] = {}
        self._fifo: dict[str, bool] = {}
        """Box → whether it is recorded as FIFO."""
        self._ids = IdSequence()
        self._closed = False

    @contextmanager
    def _open(self, box: Box) -> Iterator[tuple[BoxState, datetime]]:
        with self._lock:
            if self._closed:
                raise RoomClosed
            yield self._boxes.setdefault(box.key, BoxState()), self._clock.now()

    @instant
    def boxes(self) -> list[str]:
        with self._lock:
            return sorted(key for key, state in self._boxes.items() if state.entries)

    @instant
    def record_order(self, box: Box, *, change: bool = False, tx: Tx = None) -> bool | None:
        with self._open(box):
            if change:
                self._fifo[box.key] = box.order.fifo
            return self._fifo.setdefault(box.key, box.order.fifo)

    # -- put and record --------------------------------------------------------------------------------------------

    @instant
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> list[Receipt]:
        with self._open(box) as (state, now):
            return [put_draft(box, state, self._ids, draft, now) for draft in drafts]

    @instant
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> list[KeyStatus]:
        with self._open(box) as (state, now):
            return [record_key(box, state, self._ids, draft, now) for draft in drafts]

    # -- claim, renew and reap -------------------------------------------------------------------------------------

    @instant
    def claim(self, box: Box, request: ClaimRequest, *, tx: Tx = None) -> list[StoredMessage]:
        with self._open(box) as (state, now):
            return [entry.to_message() for entry in claim_entries(box, state, request, now)]

    @instant
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> list[bool]:
        with self._open(box) as (state, now):
            return renew_leases(state, claims, lease, now)

    @instant
    def reap(self, box: Box, limit: int) -> Reaped:
        with self._open(box) as (state, now):
            return reap_box(box, state, limit, now)

    # -- settle, mark and cancel -----------------------------------------------------------------------------------

    @instant
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Tx = None) -> list[bool]:
        with self._open(box) as (state, now):
            return settle_claims(box, state, settlements, now)

    @instant
    def mark(self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Tx = None) -> list[bool]:
        with self._open(box) as (state, now):
            return [self._mark(box, state, key, mark, error or "", now) for key in keys]

    def _mark(self, box: Box, state: BoxState, key: Key, mark: Mark, error: str, now: datetime) -> bool:
        entry = find_known(box, state, key, now)
        if entry is None and mark == "processed":
            entry = insert(state, self._ids, Draft(*key), now)
        return entry is not None and mark_entry(box, state, entry, mark, error, now)

    @instant
    def cancel(self, box: Box, which: Filter, *, tx: Tx = None) -> list[Key]:
        with self._open(box) as (state, now):
            waiting = _matching(state, which._replace(states=frozenset({State.WAITING})))
            for entry in waiting:
                transitions.finish(state, entry, Ending.CANCELLED, now, erase=box.retention.on_success == "delete")
            return [entry.draft.key for entry in waiting]

    # -- replay and purge ------------------------------------------------------------------------------------------

    @instant
    def replay(self, box: Box, which: Filter, *, tx: Tx = None) -> list[Key]:
        with self._open(box) as (state, now):
            dead = _matching(state, which._replace(states=frozenset({State.DEAD})))
            for entry in dead:
                transitions.revive(box, state, entry, now)
            return [entry.draft.key for entry in dead]

    @instant
    def purge(self, box: Box, purge: Purge) -> int:
        with self._open(box) as (state, now):
            old = [entry for entry in state.entries.values() if purge.takes(entry, box.retention, now)]
            if purge.state is State.DONE:
                old.sort(key=lambda entry: (entry.completed_at, entry.id))
            old = old[: purge.limit]
            for entry in old:
                state.leave_line(entry, now)
                state.free_key(entry)
                del state.entries[entry.id]
            return len(old)

    # -- find and counts -------------------------------------------------------------------------------------------

    @instant
    def find(self, box: Box, which: Filter) -> list[StoredMessage]:
        with self._open(box) as (state, _):
            return [entry.to_message() for entry in _matching(state, which)]

    @instant
    def counts(self, box: Box) -> Counts:
        with self._open(box) as (state, _):
            count = Counter(entry.state for entry in state.entries.values())
            return {state: count[state] for state in State}

    @instant
    def close(self) -> None:
        self._closed = True


def _matching(state: BoxState, which: Filter) -> list[Entry]:
    """Returns the entries that fit, in id order."""
    entries: Iterator[Entry] = iter(state.entries.values())
    if which.ids is not None and which.keys is None:
        entries = map(state.entries.__getitem__, sorted(state.entries.keys() & set(which.ids)))
    fitting = (
        entry for entry in entries if which.fits(entry.to_message()) and (not which.blocking or entry.blocks_its_group)
    )
    return list(itertools.islice(fitting, which.limit))


class MemoryStore(MemoryVerbs, Async):
    """For async code."""


class SyncMemoryStore(MemoryVerbs, Sync):
    """For sync code."""
