"""The changes of state that several verbs of the memory store share."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from postroom._kernel.availability import first_availability
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.entry import Entry
from postroom.spi import Box, Ending, State, is_in_line


def enter(box: Box, state: BoxState, entry: Entry, now: datetime) -> None:
    """Seen → waiting: the message enters the queue."""
    draft = entry.draft
    group = draft.group if box.order.fifo else None
    entry.state = State.WAITING
    entry.expires = draft.expires or (now + draft.lifetime if draft.lifetime else None)
    sleeps = group is not None and _is_behind_another(state, entry, group, now)
    state.offer(entry, *first_availability(draft.due, now, in_line=group is not None, sleeps=sleeps))
    if group is not None:
        state.join_line(entry, group)
    if draft.collapse_key is not None:
        state.collapsing.setdefault(draft.collapse_key, set()).add(entry.id)


def _is_behind_another(state: BoxState, entry: Entry, group: str, now: datetime) -> bool:
    return any(member.id < entry.id and is_in_line(member, now) for member in state.line(group))


def sleep(entry: Entry) -> None:
    """Claimed or waiting → waiting, until the entry is the first of its line."""
    entry.state, entry.owner, entry.available_at, entry.delayed = State.WAITING, None, None, False


def end_batch(state: BoxState, entry: Entry) -> None:
    """Gives back the claimed members of the line behind this entry, without counting an attempt.

    A batch of a FIFO group ends at the first message that is not a success.
    """
    if entry.line is not None:
        for member in state.line(entry.line):
            if member.id > entry.id and member.state is State.CLAIMED:
                sleep(member)


def finish(
    state: BoxState, entry: Entry, ending: Ending, now: datetime, *, by: UUID | None = None, erase: bool = False
) -> None:
    """Any state → done."""
    entry.state, entry.ending = State.DONE, ending
    entry.completed_at, entry.completed_by = now, by
    entry.owner = entry.available_at = None
    entry.lost_leases = 0
    if erase:
        entry.erase_content()
    if entry.draft.collapse_key is not None:
        state.collapsing.get(entry.draft.collapse_key, set()).discard(entry.id)
    if entry.line is not None:
        state.leave_line(entry, now)
    if entry.watched:
        state.step_ended(entry, now)


def bury(box: Box, state: BoxState, entry: Entry, error: str, now: datetime) -> None:
    """Any state → dead; or done, where the box discards dead letters."""
    entry.last_error = error
    if box.retention.dead_letter == "discard":
        finish(state, entry, Ending.DISCARDED, now, erase=True)
        return
    entry.state, entry.completed_at, entry.delayed = State.DEAD, now, False
    entry.owner = entry.available_at = None
    if entry.draft.collapse_key is not None:
        state.collapsing.get(entry.draft.collapse_key, set()).discard(entry.id)
    if box.order.on_dead != "block":
        state.leave_line(entry, now)
    if entry.watched:
        state.step_ended(entry, now)


def revive(box: Box, state: BoxState, entry: Entry, now: datetime) -> None:
    """Dead → waiting, in its old place and with new budgets. The fence continues: an old claim stays invalid."""
    entry.state, entry.completed_at, entry.expires = State.WAITING, None, None
    entry.attempt = entry.deliveries = entry.lost_leases = 0
    entry.fence = max(entry.fence, 1)  # it counts as claimed: a new due time does not take it out of its line
    draft = entry.draft
    if draft.collapse_key is not None:
        state.collapsing.setdefault(draft.collapse_key, set()).add(entry.id)
    if box.order.fifo and draft.group is not None:
        if entry.line is None:
            state.join_line(entry, draft.group)
        sleep(entry)
        state.promote(draft.group, now)
    else:
        state.offer(entry, now)
