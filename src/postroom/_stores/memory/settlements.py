"""Settle and mark in memory: outcomes of claimed messages, and changes that need no claim."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from postroom._kernel.availability import give_back
from postroom._stores.memory import transitions
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.claims import is_held
from postroom._stores.memory.entry import Entry
from postroom.errors import AmbiguousMessageId
from postroom.spi import Box, Claim, Ending, Key, Mark, NamedTarget, Settlement, State

Item = tuple[int, Entry, Settlement]
"""A settlement with its index and the entry that it names."""


def settle_claims(box: Box, state: BoxState, settlements: Sequence[Settlement], now: datetime) -> list[bool]:
    """Applies outcomes where the claim still holds; returns for each whether it did."""
    successes: list[Item] = []
    others: list[Item] = []
    # With `requeue`, an ack gives the message back if its content was replaced under the lease.
    requeues_stale = box.delivery.on_stale_ack == "requeue"
    for index, settlement in enumerate(settlements):
        target = settlement.target
        entry = state.entries.get(target.id) if isinstance(target, Claim) else _find_named(state, target)
        if entry is not None:
            is_success = settlement.verdict == "done" and not (requeues_stale and entry.stale)
            (successes if is_success else others).append((index, entry, settlement))
    kept = [False] * len(settlements)
    # What is not a success comes first, from the back. It ends the batch of its group, so that a success behind it in
    # the line no longer holds. From the back, because a batch that is given back as a whole then keeps every outcome.
    others.sort(key=lambda item: -item[1].id)
    for index, entry, settlement in others:
        if is_held(entry, settlement.target):
            _give_up_or_back(box, state, entry, settlement, now)
            kept[index] = True
    erase = box.retention.on_success == "delete"
    for index, entry, settlement in successes:
        if is_held(entry, settlement.target):
            transitions.finish(state, entry, Ending.HANDLED, now, by=entry.owner, erase=erase)
            if settlement.result is not None:
                entry.keep_result(settlement.result)
            kept[index] = True
    return kept


def _find_named(state: BoxState, target: NamedTarget) -> Entry | None:
    if target.source is not None:
        return state.find_key(Key(target.source, target.message_id))
    sources = state.keys.get(target.message_id, {})
    if len(sources) > 1:
        raise AmbiguousMessageId
    return next((state.entries[id_] for id_ in sources.values()), None)


def _give_up_or_back(box: Box, state: BoxState, entry: Entry, settlement: Settlement, now: datetime) -> None:
    """Applies an outcome that is not a success."""
    transitions.end_batch(state, entry)
    if settlement.verdict == "dead":
        entry.attempt += settlement.counts
        transitions.bury(box, state, entry, settlement.error or "", now)
        return
    if settlement.error is not None:
        entry.last_error = settlement.error
    entry.attempt, delay = give_back(box.delivery, settlement, entry.attempt, in_line=entry.line is not None)
    entry.state, entry.owner, entry.lost_leases = State.WAITING, None, 0
    state.offer(entry, None if delay is None else now + delay)
    if entry.line is not None:
        state.promote(entry.line, now)


def mark_entry(box: Box, state: BoxState, entry: Entry, mark: Mark, error: str, now: datetime) -> bool:
    """Moves a message without a claim; returns True if something changed."""
    if entry.state is State.DONE:
        return False
    if mark == "processing":
        if entry.state is not State.SEEN:
            return False
        transitions.enter(box, state, entry, now)
    elif mark == "skipped":
        if not entry.blocks_its_group:
            return False
        state.leave_line(entry, now)
    elif mark == "processed":
        transitions.finish(state, entry, Ending.MARKED, now, erase=box.retention.on_success == "delete")
    else:
        if entry.state is State.DEAD:
            return False
        transitions.end_batch(state, entry)
        transitions.bury(box, state, entry, error, now)
    return True
