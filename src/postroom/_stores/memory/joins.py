"""Joins in memory: their verbs, and what a claim does with a continuation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from postroom._kernel.joins import (
    FAILED_ENDINGS,
    WAITS_FOR_ITSELF,
    Join,
    JoinFilter,
    JoinId,
    JoinStatus,
    JoinStep,
    JoinWait,
    StepCounts,
    StepStatus,
    failure_of,
    status_of,
)
from postroom._kernel.known_keys import is_outside_dedup_window
from postroom._stores.memory import transitions
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.entry import Entry
from postroom._stores.memory.join_state import JoinState, Step
from postroom.errors import ArgumentValueError, JoinEnded, JoinFull, JoinNotFound, MessageNotFound
from postroom.spi import Box, ClaimRequest, Ending, Key, State
from postroom.spi import Step as StepName


def join_named(state: BoxState, join: UUID) -> JoinState:
    found = state.joins.get(join)
    if found is None:
        raise JoinNotFound
    return found


# -- attach and report ---------------------------------------------------------------------------------------------


def check_puts(box: Box, state: BoxState, join: JoinState, keys: Sequence[Key], now: datetime) -> None:
    """Raises an error if the messages that have, or will have, these keys cannot become steps."""
    window, distinct = box.retention.dedup_window, dict.fromkeys(keys)
    known = {
        entry.id
        for entry in map(state.find_key, distinct)
        if entry is not None and not is_outside_dedup_window(entry.first_seen, window, now)
    }
    _check_steps(state, join, known, new=len(distinct) - len(known & join.steps.keys()))


def _check_steps(state: BoxState, join: JoinState, known: set[int], *, new: int) -> None:
    """`known`: the ids of messages that are to be steps. `new`: how many messages are none yet."""
    if new and (join.status is not JoinStatus.PENDING or join.is_sealed):
        raise JoinEnded
    expected = join.draft.expected_steps
    if expected is not None and len(join.steps) + new > expected:
        raise JoinFull
    if known & _continuations_after(state, join):
        raise ArgumentValueError(WAITS_FOR_ITSELF)


def _continuations_after(state: BoxState, join: JoinState) -> set[int]:
    """Returns the continuation of a join, those of joins that wait for it, and so on."""
    found: set[int] = set()
    joins = [join]
    while joins:
        wait = joins.pop().wait_id
        if wait is not None and wait not in found:
            found.add(wait)
            joins += [above for above in state.joins_of.get(wait, ()) if above.status is JoinStatus.PENDING]
    return found


def attach(state: BoxState, join: JoinState, steps: Sequence[StepName], now: datetime) -> list[bool]:
    entries = [_entry(state, step) for step in steps]
    ids = {entry.id for entry in entries}
    _check_steps(state, join, ids, new=len(ids - join.steps.keys()))
    attached = []
    for entry in entries:
        attached.append(entry.id not in join.steps)
        if attached[-1]:
            join.steps[entry.id] = Step(now)
            state.joins_of.setdefault(entry.id, []).append(join)
    if any(attached) and join.is_filled:
        join.updated_at = now
        state.wake_continuation(join, now)
    return attached


def _entry(state: BoxState, step: StepName) -> Entry:
    entry = state.find_key(step) if isinstance(step, Key) else state.entries.get(step)
    if entry is None:
        raise MessageNotFound
    return entry


def report(state: BoxState, join: JoinState, name: StepName, *, failed: bool, now: datetime) -> bool:
    entry = _entry(state, name)
    step = join.steps.get(entry.id)
    if step is None:
        raise MessageNotFound("this message is not a step of the join: attach it first")
    if join.status is not JoinStatus.PENDING or status_of_step(state, entry.id, step) is not StepStatus.PENDING:
        return False
    step.outcome = StepStatus.FAILED if failed else StepStatus.COMPLETED
    state.wake_continuation(join, now)
    return True


def seal(state: BoxState, join: JoinState, now: datetime) -> bool:
    if join.status is not JoinStatus.PENDING or join.draft.expected_steps is not None:
        raise JoinEnded("only an open join that has not ended can be sealed")
    if join.is_sealed:
        return False
    join.is_sealed, join.updated_at = True, now
    state.wake_continuation(join, now)
    return True


def cancel(box: Box, state: BoxState, join: JoinState, now: datetime) -> bool:
    if join.status is not JoinStatus.PENDING:
        return False
    join.end(JoinStatus.CANCELLED, count(state, join), now)
    wait = None if join.wait_id is None else state.entries.get(join.wait_id)
    if wait is not None and wait.state is State.WAITING:
        transitions.finish(state, wait, Ending.CANCELLED, now, erase=box.retention.on_success == "delete")
    return True


# -- the continuation ----------------------------------------------------------------------------------------------


def begin_wait(join: JoinState, wait: JoinWait, entry: Entry) -> None:
    join.wait, join.wait_id = wait, entry.id
    entry.waits_for, entry.is_continuation = join.draft.id, True


def look(box: Box, state: BoxState, entry: Entry, request: ClaimRequest, now: datetime) -> None:
    """Ends the join of a continuation if all its steps have ended; otherwise the continuation sleeps."""
    join = join_named(state, entry.waits_for)  # type: ignore[arg-type]
    past = join.is_past_deadline(now)
    pending = _pending_step(state, join) if join.is_filled else None
    if not past and (not join.is_filled or pending is not None):
        join.status = JoinStatus.PENDING  # a replay of its continuation opens a failed join again
        if pending is not None:
            pending.watched = True
        state.offer(entry, join.draft.deadline)
        if join.draft.deadline is not None and request.expect is not None:
            request.expect((join.draft.deadline - now).total_seconds())
        return
    counts = count(state, join)
    fails = join.wait is None or join.wait.fail_if_any_step_failed
    status = status_of(counts, filled=join.is_filled, fail_if_any_step_failed=fails, is_past_deadline=past)
    join.end(status, counts, now)
    follow_up = join.wait and (join.wait.on_complete if status is JoinStatus.COMPLETED else join.wait.on_fail)
    if follow_up is not None:
        entry.waits_for = None
        entry.draft = entry.draft._replace(topic=follow_up.topic, payload=follow_up.payload, format=follow_up.format)
        state.offer(entry, now)
    elif status is JoinStatus.COMPLETED:
        transitions.finish(state, entry, Ending.JOINED, now)
    else:
        transitions.bury(box, state, entry, failure_of(counts), now)


def _pending_step(state: BoxState, join: JoinState) -> Entry | None:
    """Returns a step that has not ended; None if all have. The one that came last probably ends last."""
    for id_ in reversed(join.steps):
        if status_of_step(state, id_, join.steps[id_]) is StepStatus.PENDING:
            return state.entries[id_]
    return None


# -- reading -------------------------------------------------------------------------------------------------------


def status_of_step(state: BoxState, id_: int, step: Step) -> StepStatus:
    if step.outcome is not None:
        return step.outcome
    entry = state.entries.get(id_)
    if entry is None:
        return StepStatus.COMPLETED
    if entry.state is State.DEAD or entry.ending in FAILED_ENDINGS:
        return StepStatus.FAILED
    return StepStatus.COMPLETED if entry.state is State.DONE else StepStatus.PENDING


def count(state: BoxState, join: JoinState) -> StepCounts:
    found = Counter(status_of_step(state, id_, step) for id_, step in join.steps.items())
    return StepCounts(*(found[status] for status in StepStatus))


def to_join(state: BoxState, join: JoinState, now: datetime) -> Join:
    counts, status = join.counts, join.status
    if status is JoinStatus.PENDING or counts is None:
        counts = count(state, join)
        fails = join.wait is None or join.wait.fail_if_any_step_failed
        past = join.is_past_deadline(now)
        status = status_of(counts, filled=join.is_filled, fail_if_any_step_failed=fails, is_past_deadline=past)
    draft = join.draft
    return Join(
        JoinId(int=draft.id.int),
        draft.tenant_id,
        status,
        draft.expected_steps,
        len(join.steps),
        counts.completed,
        counts.failed,
        join.is_sealed,
        draft.metadata,
        draft.deadline,
        join.created_at,
        join.updated_at,
        join.number,
    )


def find(state: BoxState, which: JoinFilter, now: datetime) -> list[Join]:
    ids = state.joins if which.ids is None else [id_ for id_ in state.joins if id_ in which.ids]
    joins = (to_join(state, state.joins[id_], now) for id_ in ids)
    fitting = [
        join
        for join in joins
        if join.number > which.after
        and which.tenant_id in {None, join.tenant_id}
        and (which.statuses is None or join.status in which.statuses)
    ]
    return fitting[: which.limit]


def find_steps(state: BoxState, join: JoinState, after: int, limit: int) -> list[JoinStep]:
    found = []
    for id_ in sorted(each for each in join.steps if each > after)[:limit]:
        step, entry = join.steps[id_], state.entries.get(id_)
        source, message_id = (None, None) if entry is None else entry.draft.key
        found.append(JoinStep(id_, source, message_id, status_of_step(state, id_, step), step.attached_at))
    return found


def keep_outcome(state: BoxState, entry: Entry) -> None:
    """Before a message is purged: keeps how its steps ended, where the missing message would not show it."""
    for join in state.joins_of.get(entry.id, ()):
        step = join.steps[entry.id]
        if status_of_step(state, entry.id, step) is StepStatus.FAILED:
            step.outcome = StepStatus.FAILED


def purge(state: BoxState, cutoff: datetime) -> None:
    """Deletes joins that have ended before `cutoff`, unless a replay of their continuations would look at them."""
    for id_, join in list(state.joins.items()):
        wait = None if join.wait_id is None else state.entries.get(join.wait_id)
        is_replayable = wait is not None and wait.waits_for is not None
        if join.status is not JoinStatus.PENDING and join.updated_at <= cutoff and not is_replayable:
            del state.joins[id_]
            for step in join.steps:
                state.joins_of[step].remove(join)
                if not state.joins_of[step]:
                    del state.joins_of[step]
