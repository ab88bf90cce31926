"""Put and record in memory: new messages, and writes whose key is known."""

from __future__ import annotations

from datetime import datetime

from postroom._kernel.availability import Availability, reschedule
from postroom._kernel.known_keys import decide_known_key, is_outside_dedup_window
from postroom._stores.memory import transitions
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.entry import Entry
from postroom.spi import Box, Draft, Ending, Key, KeyStatus, Receipt, State


class IdSequence:
    """The ids of a store: ascending, never used again."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def find_known(box: Box, state: BoxState, key: Key, now: datetime) -> Entry | None:
    """Returns the message that has this key, or None if its deduplication window has passed. The key is then free."""
    entry = state.find_key(key)
    if entry is not None and is_outside_dedup_window(entry.first_seen, box.retention.dedup_window, now):
        state.free_key(entry)
        return None
    return entry


def insert(state: BoxState, ids: IdSequence, draft: Draft, now: datetime) -> Entry:
    """Stores a message as seen."""
    entry = Entry(ids.next(), draft, now, now, draft.expires, State.SEEN)
    state.entries[entry.id] = entry
    state.keys.setdefault(draft.message_id, {})[draft.source] = entry.id
    return entry


def put_draft(box: Box, state: BoxState, ids: IdSequence, draft: Draft, now: datetime) -> Receipt:
    entry = find_known(box, state, draft.key, now)
    if entry is not None:
        return _put_known(box, state, entry, draft, now)
    entry = insert(state, ids, draft, now)
    superseded = _collapse(state, entry, now)
    transitions.enter(box, state, entry, now)
    receipt = Receipt.of_new(entry.id, draft)
    return receipt._replace(superseded=superseded) if superseded else receipt


def _put_known(box: Box, state: BoxState, entry: Entry, draft: Draft, now: datetime) -> Receipt:
    conflict = entry.contradicts(draft)
    decision = decide_known_key(draft, entry.state, conflict=conflict, is_continuation=entry.is_continuation)
    superseded: tuple[int, ...] = ()
    replaced_under_lease = False
    if decision.touches:
        entry.last_seen = now
    if decision.fills:
        entry.draft = draft
        superseded = _collapse(state, entry, now)
        transitions.enter(box, state, entry, now)
    if decision.replaces:
        replaced_under_lease = _replace(state, entry, draft, now)
    if decision.revives:
        transitions.revive(box, state, entry, now)
    return decision.receipt(entry.id, draft, superseded=superseded, replaced_under_lease=replaced_under_lease)


def _collapse(state: BoxState, new: Entry, now: datetime) -> tuple[int, ...]:
    """Ends the waiting messages with the same collapse key as superseded; returns their ids."""
    if new.draft.collapse_key is None:
        return ()
    ids = sorted(state.collapsing.get(new.draft.collapse_key, ()))
    waiting = [entry for entry in map(state.entries.__getitem__, ids) if entry.state is State.WAITING]
    for entry in waiting:
        state.replace_step(entry, new.id)
        transitions.finish(state, entry, Ending.SUPERSEDED, now)
    return tuple(entry.id for entry in waiting)


def _replace(state: BoxState, entry: Entry, draft: Draft, now: datetime) -> bool:
    """Replaces the content; returns True if that happened under a lease.

    Id, group, collapse key, receive time and progress stay.
    """
    old = entry.draft
    before = (old.topic, old.payload, old.format, old.hash)
    changed = before != (draft.topic, draft.payload, draft.format, draft.hash)
    entry.draft = draft._replace(group=old.group, collapse_key=old.collapse_key, received_at=old.received_at)
    entry.revision += changed
    if draft.expires is not None:
        entry.expires = draft.expires
    if entry.state is State.WAITING:
        _reschedule(state, entry, now)
    under_lease = changed and entry.state is State.CLAIMED
    entry.stale = entry.stale or under_lease
    return under_lease


def _reschedule(state: BoxState, entry: Entry, now: datetime) -> None:
    current = Availability(entry.available_at, entry.delayed)
    new = reschedule(current, entry.draft.due, now, was_claimed=entry.fence > 0, in_line=entry.line is not None)
    if new != current:
        state.offer(entry, *new)
        if entry.line is not None:
            state.promote(entry.line, now)


def record_key(box: Box, state: BoxState, ids: IdSequence, draft: Draft, now: datetime) -> KeyStatus:
    entry = find_known(box, state, draft.key, now)
    if entry is None:
        insert(state, ids, draft, now)
        return KeyStatus(State.SEEN, is_new=True, conflict=False)
    if entry.state is not State.DONE:
        entry.last_seen = now
        if entry.draft.hash is None and draft.hash is not None:
            entry.draft = entry.draft._replace(hash=draft.hash, hash_algorithm=draft.hash_algorithm)
    return KeyStatus(entry.state, is_new=False, conflict=entry.contradicts(draft))
