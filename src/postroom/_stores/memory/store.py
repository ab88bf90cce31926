"""The verbs of the memory store. It can be shared by threads and tasks."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

from postroom._kernel.joins import receipt_of_known
from postroom._kernel.program import Async, Sync, instant
from postroom._stores.memory import joins, transitions
from postroom._stores.memory.arrivals import IdSequence, find_known, insert, put_draft, record_key
from postroom._stores.memory.begins import begin_entry
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.claims import claim_entries, reap_box, renew_leases
from postroom._stores.memory.entry import Entry
from postroom._stores.memory.join_state import JoinState
from postroom._stores.memory.settlements import mark_entry, settle_claims
from postroom.errors import JoinEnded, RoomClosed
from postroom.spi import (
    Attendance,
    Begin,
    Begun,
    Box,
    Claim,
    ClaimRequest,
    Clock,
    Counts,
    Draft,
    Ending,
    Features,
    Filter,
    Join,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinStep,
    JoinWait,
    Key,
    KeyStatus,
    Mark,
    Purge,
    Reaped,
    Receipt,
    ReceiptStatus,
    Settlement,
    State,
    Step,
    StoredMessage,
    SystemClock,
    Tx,
)


class MemoryVerbs:
    """The verbs of both modes. Each holds the lock of the store from start to end."""

    features = Features(durable=False, transactional=False, joins=True, guard=True)

    def __init__(self, *, name: str = "memory", clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._boxes: dict[str, BoxState] = {}
        self._fifo: dict[str, bool] = {}
        """Box → whether it is recorded as FIFO."""
        self._attendant: tuple[UUID, datetime] | None = None
        """The process that has the soft lease, and the end of the lease."""
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

    @instant
    def attend(self, boxes: Sequence[str], process: UUID, lease: timedelta) -> Attendance:
        with self._lock:
            if self._closed:
                raise RoomClosed
            now = self._clock.now()
            is_given_back = not lease and self._attendant is not None and self._attendant[0] == process
            if self._attendant is None or self._attendant[1] <= now or is_given_back:
                self._attendant = process, now + lease
            holder, until = self._attendant
            times = {box: self._boxes[box].next_time() for box in boxes if box in self._boxes}
            due = {box: (time - now).total_seconds() for box, time in times.items() if time is not None}
            return Attendance(due, None if holder == process else (until - now).total_seconds())

    # -- put and record --------------------------------------------------------------------------------------------

    @instant
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> list[Receipt]:
        with self._open(box) as (state, now):
            if any(draft.join for draft in drafts):
                return self._put_steps(box, state, drafts, now)
            return [put_draft(box, state, self._ids, draft, now) for draft in drafts]

    def _put_steps(self, box: Box, state: BoxState, drafts: Sequence[Draft], now: datetime) -> list[Receipt]:
        """Puts messages and makes them steps. Nothing is stored if a join cannot take its steps."""
        steps: dict[UUID, list[Draft]] = {}
        for draft in drafts:
            if draft.join is not None:
                steps.setdefault(draft.join, []).append(draft)
        for join, given in steps.items():
            joins.check_puts(box, state, joins.join_named(state, join), [draft.key for draft in given], now)
        receipts = [put_draft(box, state, self._ids, draft, now) for draft in drafts]
        for draft, receipt in zip(drafts, receipts, strict=True):
            if draft.join is not None:
                joins.attach(state, joins.join_named(state, draft.join), [receipt.id], now)
        return receipts

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
    def begin(self, box: Box, begins: Sequence[Begin]) -> list[Begun]:
        with self._open(box) as (state, now):
            return [begin_entry(box, state, self._ids, begin, now) for begin in begins]

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
                joins.keep_outcome(state, entry)
                del state.entries[entry.id]
            if purge.state is State.DONE:
                joins.purge(state, now - purge.older_than)
            return len(old)

    # -- joins -----------------------------------------------------------------------------------------------------

    @instant
    def start_join(self, box: Box, draft: JoinDraft, *, tx: Tx = None) -> None:
        with self._open(box) as (state, now):
            state.joins.setdefault(draft.id, JoinState(draft, self._ids.next(), now, now))

    @instant
    def attach_steps(self, box: Box, join: UUID, steps: Sequence[Step], *, tx: Tx = None) -> list[bool]:
        with self._open(box) as (state, now):
            return joins.attach(state, joins.join_named(state, join), steps, now)

    @instant
    def report_step(self, box: Box, join: UUID, step: Step, *, failed: bool, tx: Tx = None) -> bool:
        with self._open(box) as (state, now):
            return joins.report(state, joins.join_named(state, join), step, failed=failed, now=now)

    @instant
    def put_wait(self, box: Box, draft: Draft, wait: JoinWait, *, tx: Tx = None) -> Receipt:
        with self._open(box) as (state, now):
            join = joins.join_named(state, wait.join)
            known = None if join.wait_id is None else state.entries.get(join.wait_id)
            if known is not None:  # not by its key: the deduplication window may have passed
                return receipt_of_known(known.to_message())
            if join.status is not JoinStatus.PENDING:
                raise JoinEnded
            receipt = put_draft(box, state, self._ids, draft, now)
            if not receipt.is_new:
                return receipt._replace(status=ReceiptStatus.CONFLICT)  # another message has the key
            joins.begin_wait(join, wait, state.entries[receipt.id])
            return receipt

    @instant
    def seal_join(self, box: Box, join: UUID, *, tx: Tx = None) -> bool:
        with self._open(box) as (state, now):
            return joins.seal(state, joins.join_named(state, join), now)

    @instant
    def cancel_join(self, box: Box, join: UUID, *, tx: Tx = None) -> bool:
        with self._open(box) as (state, now):
            return joins.cancel(box, state, joins.join_named(state, join), now)

    @instant
    def find_joins(self, box: Box, which: JoinFilter) -> list[Join]:
        with self._open(box) as (state, now):
            return joins.find(state, which, now)

    @instant
    def find_steps(self, box: Box, join: UUID, *, after: int = 0, limit: int = 100) -> list[JoinStep]:
        with self._open(box) as (state, _):
            return joins.find_steps(state, joins.join_named(state, join), after, limit)

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
