"""Claim, renew and reap in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter

from postroom._kernel.policy import EXPIRED, cause_of_death, is_suspect
from postroom._stores.memory import joins, transitions
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.entry import Entry
from postroom.spi import Box, Claim, ClaimRequest, NamedTarget, Reaped, State, claimable_front, without_suspects


def claim_entries(box: Box, state: BoxState, request: ClaimRequest, now: datetime) -> list[Entry]:
    """Leases what is due and free; returns it in the order in which it became ready."""
    taken: list[Entry] = []
    until = now + request.lease
    has_limit = box.delivery.max_deliveries is not None
    for candidate in state.candidates(request, now):
        if candidate.waits_for is not None:
            joins.look(box, state, candidate, request, now)
            is_ready = candidate.state is State.WAITING and candidate.waits_for is None
            if not is_ready or (request.topics is not None and candidate.topic not in request.topics):
                continue
        # Most candidates are free: no group, no expiry, no limit on deliveries or lost leases restricts them.
        if (
            candidate.line is None
            and candidate.expires is None
            and candidate.state is State.WAITING
            and not (candidate.lost_leases or has_limit)
        ):
            state.lease(candidate, request.owner, until)
            taken.append(candidate)
            took_suspect = False
        else:
            front, took_suspect = _claimable(box, state, candidate, request, request.limit - len(taken), now)
            if candidate not in front:
                _sleep_behind_first(state, candidate, now)
            for entry in front:
                state.lease(entry, request.owner, until)
            taken += front
        if took_suspect or len(taken) == request.limit:
            break
    state.leased(taken, until)
    return taken


def _claimable(
    box: Box, state: BoxState, candidate: Entry, request: ClaimRequest, limit: int, now: datetime
) -> tuple[list[Entry], bool]:
    """Returns what a claim takes for a candidate, and whether that is a suspect, which is claimed alone.

    It takes the candidate itself, or the front of its group. Messages that must not be claimed again are buried first.
    """
    group = candidate.line  # if the candidate is buried it leaves its line, and the claim goes on with the group
    front = _front(state, candidate, group, request, limit, now)
    while doomed := _first_doomed(box, front, now):
        entry, cause = doomed
        transitions.bury(box, state, entry, cause, now)
        front = _front(state, candidate, group, request, limit, now)
    is_first = request.suspects and limit == request.limit
    front, took_suspect = without_suspects(front, partial(_is_suspect, box), is_first=is_first)
    if front:
        # A worker that held the group before has lost all of it, including what this claim does not take.
        transitions.end_batch(state, front[-1])
    return front, took_suspect


def _front(
    state: BoxState, candidate: Entry, group: str | None, request: ClaimRequest, limit: int, now: datetime
) -> list[Entry]:
    if group is None:
        return [candidate] if candidate.available_at is not None else []
    if any(_holds_group(member, request, now) for member in state.line(group)):
        return []
    return claimable_front(state.line(group), now, limit, request.topics)


def _holds_group(entry: Entry, request: ClaimRequest, now: datetime) -> bool:
    """Returns True if a live lease on this member, or a caller that still works on it, keeps the group from a claim."""
    if entry.state is not State.CLAIMED or entry.available_at is None:
        return False
    return entry.available_at > now or entry.id in request.in_hand


def _first_doomed(box: Box, front: Sequence[Entry], now: datetime) -> tuple[Entry, str] | None:
    """Returns the first entry that must not be claimed again, and why."""
    for entry in front:
        lost = entry.count_lost_leases()
        cause = cause_of_death(box, deliveries=entry.deliveries, lost_leases=lost, expires=entry.expires, now=now)
        if cause is not None:
            return entry, cause
    return None


def _is_suspect(box: Box, entry: Entry) -> bool:
    return is_suspect(box, deliveries=entry.deliveries, lost_leases=entry.count_lost_leases())


def _sleep_behind_first(state: BoxState, entry: Entry, now: datetime) -> None:
    """Lets a candidate that could not be taken sleep until the first in its line leaves. The first never sleeps."""
    is_open = entry.state in {State.WAITING, State.CLAIMED}
    if is_open and entry.line is not None and state.first_in_line(entry.line, now) is not entry:
        transitions.sleep(entry)


def is_held(entry: Entry, target: Claim | NamedTarget) -> bool:
    """Returns True if the claim still holds. It may be past its end, as long as no reap or claim came since."""
    # `is` first: UUIDs are compared in Python code, and nearly always they are the same object.
    if entry.state is not State.CLAIMED or not (entry.owner is target.owner or entry.owner == target.owner):
        return False
    return isinstance(target, NamedTarget) or entry.fence == target.fence


def renew_leases(state: BoxState, claims: Sequence[Claim], lease: timedelta, now: datetime) -> list[bool]:
    until = now + lease
    renewed: list[bool] = []
    for claim in claims:
        entry = state.entries.get(claim.id)
        holds = entry is not None and is_held(entry, claim)
        if entry is not None and holds:
            state.offer(entry, until)
        renewed.append(holds)
    return renewed


def reap_box(box: Box, state: BoxState, limit: int, now: datetime) -> Reaped:
    """Frees leases that have passed, and buries waiting messages that have expired: at most `limit` of each."""
    late = [entry for entry in state.entries.values() if _is_late(entry, now)]
    late = sorted(late, key=attrgetter("available_at", "id"))[:limit]
    for entry in late:
        entry.lost_leases += 1
        entry.state, entry.owner = State.WAITING, None
    expired = [entry for entry in state.entries.values() if _is_expired(entry, now)]
    expired = sorted(expired, key=attrgetter("expires", "id"))[:limit]
    for entry in expired:
        transitions.bury(box, state, entry, EXPIRED, now)
    return Reaped(len(late), len(expired))


def _is_late(entry: Entry, now: datetime) -> bool:
    return entry.state is State.CLAIMED and entry.available_at is not None and entry.available_at <= now


def _is_expired(entry: Entry, now: datetime) -> bool:
    return entry.state is State.WAITING and entry.expires is not None and entry.expires <= now
