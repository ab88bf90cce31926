"""What a world on the memory store is, without what makes no difference: copies of it, and which are the same.

Two states are the same if everything that the store keeps is the same, except that

* future times are compared by their distance from now, past times by their order only,
* a done message is only counted: nothing can happen to it,
* workers are distinct, but have no names,
* of a fence only counts whether the message was ever claimed.

The topics and the order of ids stay as they are. A field that is new in the store fails the import: this module has to
say what it means.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable
from dataclasses import fields
from datetime import datetime, timedelta

from postroom._stores.memory import SyncMemoryStore
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.entry import Entry
from postroom.spi import Box, State
from postroom.testing import FrozenClock
from tests.exploration.world import World

COMPARED = {
    *("id", "draft", "expires", "state", "available_at", "delayed", "line", "owner", "fence", "deliveries", "stale"),
    "lost_leases",
}
IGNORED = {
    *("first_seen", "last_seen", "completed_at"),  # there is no dedup window, and nothing is purged
    *("completed_by", "ending", "last_error", "revision"),  # only shown
    "attempt",  # counts for the backoff, which is constant here
    *("waits_for", "is_continuation", "watched"),  # there are no joins
}
MOST_LOST = 2
"""From so many lost leases on, more make no difference: there is no limit to them here."""
BOX_STATE = {"entries", "keys", "lines", "collapsing", "ready", "times", "joins", "joins_of"}
"""The joins are empty: no scene has one."""
assert {field.name for field in fields(Entry)} <= COMPARED | IGNORED
assert {field.name for field in fields(BoxState)} == BOX_STATE


def new_world(box: Box) -> World:
    clock = FrozenClock()
    store = SyncMemoryStore(clock=clock)
    store._boxes[box.key] = BoxState()
    return World(store, clock, box)


def fork(world: World) -> World:
    """A copy that shares nothing that changes."""
    clock = FrozenClock(world.now())
    store = SyncMemoryStore(clock=clock)
    store._ids.last = world.store._ids.last
    store._boxes[world.box.key] = _copy(world.store._boxes[world.box.key])
    return World(
        store,
        clock,
        world.box,
        {name: list(claims) for name, claims in world.claims.items()},
        dict(world.calls),
        dict(world.not_before),
        set(world.tried),
        world.call,
        world._seen,
    )


def _copy(box_state: BoxState) -> BoxState:
    return BoxState(
        {id_: copy.copy(entry) for id_, entry in box_state.entries.items()},
        {message_id: dict(sources) for message_id, sources in box_state.keys.items()},
        {group: list(members) for group, members in box_state.lines.items()},
        {key: set(ids) for key, ids in box_state.collapsing.items()},
        {at: ids.copy() for at, ids in box_state.ready.items()},
        list(box_state.times),
    )


def next_moment(world: World) -> timedelta | None:
    """How long until the next time that lies ahead, if any does."""
    now = world.now()
    entries = world.store._boxes[world.box.key].entries.values()
    ahead = [entry.available_at - now for entry in entries if entry.available_at is not None]
    return min((distance for distance in ahead if distance > timedelta()), default=None)


def state_of(world: World) -> Hashable:
    """Equal for worlds that are the same."""
    box_state: BoxState = world.store._boxes[world.box.key]
    now = world.now()
    open_ = [entry for _, entry in sorted(box_state.entries.items()) if entry.state is not State.DONE]
    past = sorted({e.available_at for e in open_ if e.available_at is not None and e.available_at < now}, reverse=True)
    ranks: dict[datetime | None, int | None] = {at: -1 - rank for rank, at in enumerate(past)}
    ranks |= {now: 0, None: None}
    owners: dict[object, int] = {None: -1}
    groups: dict[str, int] = {}
    rows = []
    for entry in open_:
        name, at = entry.draft.message_id, entry.available_at
        due = entry.draft.due
        until = world.not_before.get(name)
        rows.append(
            (
                groups.setdefault(name[0], len(groups)),
                entry.draft.topic,
                entry.state,
                at - now if at is not None and at > now else ranks[at],
                at is None or entry.id in box_state.ready[at],
                entry.line is not None and entry.id in box_state.lines[entry.line],
                owners.setdefault(entry.owner, len(owners)),
                entry.fence > 0,
                entry.delayed,
                name in world.claims and world.claims[name][-1].fence > entry.fence,
                entry.id in box_state.collapsing.get(entry.draft.collapse_key or "", ()),
                entry.draft.collapse_key,
                entry.stale,
                min(entry.lost_leases, MOST_LOST),
                entry.deliveries if world.box.delivery.max_deliveries is not None else 0,
                due - world.now() if due is not None and due > world.now() else None,
                until - world.now() if until is not None and until > world.now() else None,
                name in world.tried,
            )
        )
    counts = Counter(entry.draft.message_id[0] for entry in box_state.entries.values())
    others = sorted(count for group, count in counts.items() if group not in groups)
    return tuple(rows), tuple(counts[group] for group in groups), tuple(others)
