"""What a world on the memory store is, without what makes no difference: copies of it, and which are the same.

Two states are the same if everything that the store keeps is the same, except that

* times that lie ahead are told by their distance from now, times that have passed by their order only,
* a done message is only counted: nothing can happen to it,
* workers are told apart, but have no names,
* fences are told by what they mean: early, none, or some.

The topics and the order of ids stay as they are. A field that is new in the store fails the import: this module has to
say what it means.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable
from dataclasses import fields
from datetime import timedelta

from postroom._kernel.clock import to_microseconds
from postroom._stores.memory import Entry, Shelf, SyncMemoryStore
from postroom.spi import Box, State
from postroom.testing import FrozenClock
from tests.exploration.world import World

COMPARED = {"id", "draft", "expires", "state", "available_at", "line", "owner", "fence", "deliveries", "stale", "lost"}
IGNORED = {
    *("first_seen", "last_seen", "completed_at"),  # there is no dedup window, and nothing is purged
    *("completed_by", "ending", "last_error", "revision"),  # only shown
    "attempt",  # counts for the backoff, which is constant here
}
MOST_LOST = 2
"""From so many lost leases on, more make no difference: there is no limit to them here."""
SHELF = {"entries", "keys", "lines", "collapsing", "ready"}
assert {field.name for field in fields(Entry)} <= COMPARED | IGNORED
assert {field.name for field in fields(Shelf)} == SHELF


def new_world(box: Box) -> World:
    clock = FrozenClock()
    store = SyncMemoryStore(clock=clock)
    store._shelves[box.key] = Shelf()
    return World(store, clock, box)


def fork(world: World) -> World:
    """A copy that shares nothing that changes."""
    clock = FrozenClock(world.now())
    store = SyncMemoryStore(clock=clock)
    store._last_id = world.store._last_id
    store._shelves[world.box.key] = _copy(world.store._shelves[world.box.key])
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


def _copy(shelf: Shelf) -> Shelf:
    return Shelf(
        {id_: copy.copy(entry) for id_, entry in shelf.entries.items()},
        {message_id: dict(sources) for message_id, sources in shelf.keys.items()},
        {group: list(members) for group, members in shelf.lines.items()},
        {key: set(ids) for key, ids in shelf.collapsing.items()},
        list(shelf.ready),
    )


def next_moment(world: World) -> timedelta | None:
    """How long until the next time that lies ahead, if any does."""
    now = to_microseconds(world.now())
    entries = world.store._shelves[world.box.key].entries.values()
    ahead = [entry.available_at - now for entry in entries if entry.available_at is not None]
    least = min((distance for distance in ahead if distance > 0), default=None)
    return None if least is None else timedelta(microseconds=least)


def state_of(world: World) -> Hashable:
    """Equal for worlds that are the same."""
    shelf: Shelf = world.store._shelves[world.box.key]
    now = to_microseconds(world.now())
    open_ = [entry for _, entry in sorted(shelf.entries.items()) if entry.state is not State.DONE]
    past = sorted({e.available_at for e in open_ if e.available_at is not None and e.available_at < now}, reverse=True)
    ranks = {at: -1 - rank for rank, at in enumerate(past)} | {now: 0, None: None}
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
                at is None or (at, entry.id) in shelf.ready,
                entry.line is not None and entry.id in shelf.lines[entry.line],
                owners.setdefault(entry.owner, len(owners)),
                (entry.fence > 0) - (entry.fence < 0),
                name in world.claims and world.claims[name][-1].fence > entry.fence,
                entry.id in shelf.collapsing.get(entry.draft.collapse_key or "", ()),
                entry.draft.collapse_key,
                entry.stale,
                min(getattr(entry, "lost", 0), MOST_LOST),
                entry.deliveries if world.box.delivery.max_deliveries is not None else 0,
                due - world.now() if due is not None and due > world.now() else None,
                until - world.now() if until is not None and until > world.now() else None,
                name in world.tried,
            )
        )
    counts = Counter(entry.draft.message_id[0] for entry in shelf.entries.values())
    others = sorted(count for group, count in counts.items() if group not in groups)
    return tuple(rows), tuple(counts[group] for group in groups), tuple(others)
