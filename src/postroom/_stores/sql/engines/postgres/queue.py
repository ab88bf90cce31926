"""The work queue on PostgreSQL: the common programs, with fewer statements where one can do several things."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from postroom._kernel.policy import DELIVERY_LIMIT, EXPIRED
from postroom._kernel.program import Program
from postroom._stores.sql import rows
from postroom._stores.sql.engines.postgres.arrays import NULL, array_text, text_array
from postroom._stores.sql.engines.postgres.frontier import BEGINNING, Frontier, Place
from postroom._stores.sql.engines.postgres.wakeups import Wakeups
from postroom._stores.sql.lines import MOST_HINTS, Doomed, Picked
from postroom._stores.sql.queue import Arrived, Indexed, QueuePrograms, Taken, batches_of_one_owner, suspicion
from postroom._stores.sql.statements import Statement
from postroom.spi import Ask, Box, Claim, Draft, Filter, Key, Settlement, StoredMessage

Row = tuple[Any, ...]

_LAST, _UNTIL, _SUSPECTS, _ALONE, _SETTLED, _DOOMED, _LINES = 11, 12, 16, 17, 22, 23, 24
"""The first row of what a turn returns: how far it looked, the end of the leases, how many suspects there were, whether
it took one, what was settled, what is doomed, and the lines that have moved on: none, unless the box had an order
before."""
REAPED_AT_ONCE = 10_000
"""Rows that a reap reads with one statement, in search of leases that have passed."""


class PostgresQueue(QueuePrograms):
    """Writers work side by side: what decides by what it has read locks it (docs/decisions/0008)."""

    def __init__(self, engine: Any, *, channel: str, notifies: bool, trusts_frontier: bool) -> None:
        super().__init__(engine)
        self._channel = channel
        self._wakeups = Wakeups(on=notifies)
        self._frontier = Frontier(trusted=trusts_frontier)
        self._spread: dict[str, int] = {}
        """Box → of how many groups its last claim was."""

    # -- put -----------------------------------------------------------------------------------------------------

    def _lock_collapse_keys(self, box: Box, keys: list[str]) -> Program[None]:
        yield Statement("lock_collapse_keys", {"box": box.key, "keys": keys})

    def lock_keys(self, box: Box, keys: Sequence[Key], *, in_passing: bool = False) -> Program[None]:
        if len(keys) > 1:
            sources, message_ids = map(list, zip(*keys, strict=True))
            locks = {"box": box.key, "source": sources, "message_id": message_ids, "queue": not in_passing}
            yield Statement("lock_keys", locks)

    def _look_up_key(self, box: Box, key: Key, *, in_passing: bool) -> Program[list[Row]]:
        if not in_passing:
            return (yield from super()._look_up_key(box, key, in_passing=in_passing))
        while True:
            given = {"box": box.key, "source": key.source, "message_id": key.message_id}
            found = yield Statement("known_in_passing", given)
            if not found or found[0][1] is not None:
                return list(found)

    def _first_in_lines(self, box: Box, groups: list[str]) -> Program[dict[str, int]]:
        """None that could be relied on without a lock: what enters is a hint, and the first claim finds out."""
        yield from ()
        return {}

    def _arrive(self, box: Box, drafts: Sequence[Draft], *, joined: bool, alone: bool) -> Program[Arrived]:
        content = self.engine.content
        columns: dict[str, Any] = {
            "box": box.key,
            "channel": self._channel,
            "tells": self._wakeups.tells(box.key, joined=joined),
            "source": _shared([draft.source for draft in drafts]),
            "message_id": text_array([draft[1] for draft in drafts]),
            "topic": _shared([draft.topic for draft in drafts]),
            "payload": [content(draft.payload) for draft in drafts],
            "format": _shared([draft.format for draft in drafts]),
        }
        if not any(map(rows.has_options, drafts)):
            # One message is a transaction by itself: nothing that follows is needed to make it whole.
            return _arrived((yield Statement("arrive_plain", columns, alone=alone)))
        options: dict[str, list[Any]] = {
            "headers": [json.dumps(draft.headers) if draft.headers else None for draft in drafts],
            "correlation_id": [draft.correlation_id for draft in drafts],
            "group_id": [draft.group for draft in drafts],
            "collapse_key": [draft.collapse_key for draft in drafts],
            "hash": [draft.hash for draft in drafts],
            "hash_algorithm": [None if draft.hash is None else draft.hash_algorithm for draft in drafts],
            "due": [draft.due for draft in drafts],
            "expires": [draft.expires for draft in drafts],
            "lifetime": [draft.lifetime for draft in drafts],
            "received_at": [draft.received_at for draft in drafts],
        }
        columns |= {name: _unless_empty(values) for name, values in options.items()}
        columns["fifo"] = box.order.fifo
        alone = alone and drafts[0].collapse_key is None
        return _arrived((yield Statement("arrive", columns, alone=alone)))

    def lock_writes(self) -> Program[None]:
        yield from ()

    def lock_waiting(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        """Find, lock in id order, and look again: a message may have been claimed or replaced before it was locked."""
        found = yield from super().lock_waiting(box, which)
        if not found:
            return []
        locked = yield Statement("lock_waiting", {"ids": sorted(message.id for message in found)})
        return (yield from self.find(box, which._replace(ids=tuple(id_ for (id_,) in locked), keys=None)))

    def replay(self, box: Box, which: Filter) -> Program[list[Key]]:
        revived = yield from super().replay(box, which)
        if revived and self._wakeups.tells(box.key, joined=True):
            yield Statement("notify", {"channel": self._channel, "box": box.key})
        return revived

    # -- claim ---------------------------------------------------------------------------------------------------

    def _claim_due(self, box: Box, ask: Ask) -> Program[Taken]:
        since = self._frontier.since(box.key)
        found = yield Statement("turn", self._asked(box, ask, since), alone=True)
        taken = yield from self._receive(box, ask, found, since)
        left = taken.rest_of(ask)
        if since != BEGINNING and left.limit and not (taken.doomed or taken.passed_over):
            rest = yield from self._claim_due(box, left)
            return rest._replace(messages=taken.messages + rest.messages)
        return taken

    def _asked(self, box: Box, ask: Ask, since: Place) -> dict[str, Any]:
        return {
            "box": box.key,
            "owner": ask.owner,
            "lease": ask.lease,
            "limit": ask.limit,
            "topics": None if ask.topics is None else sorted(ask.topics),
            "in_hand": list(ask.in_hand),
            **suspicion(box, ask),
            "since": since.available_at,
            "after": since.id,
            **self.engine.claims({}),
        }

    def _receive(self, box: Box, ask: Ask, found: Sequence[Row], since: Place) -> Program[Taken]:
        """What a claim returned: messages, and what must be buried instead."""
        about, *claimed = found
        doomed, alone = about[_DOOMED], bool(about[_ALONE])
        passed_over = bool(about[_SUSPECTS]) and not alone
        last = Place(about[_LAST], claimed[-1][0]) if len(claimed) == ask.limit else None
        self._frontier.advance(box.key, since, last)
        messages = rows.claimed(self.engine, claimed, ask.owner, about[_UNTIL])
        if not doomed:
            return Taken(messages, [], alone, passed_over)
        return Taken(messages, (yield from self._lock_doomed(box, doomed)), alone, passed_over)

    def _lock_doomed(self, box: Box, ids: Sequence[int]) -> Program[list[Doomed]]:
        locked = yield Statement("lock_doomed", {"ids": ids, **_limits(box)})
        return [Doomed(id_, group, EXPIRED if is_old else DELIVERY_LIMIT) for id_, group, is_old in locked]

    def _to_bury(self, box: Box, doomed: Doomed) -> Program[list[Doomed]]:
        return (yield from self._lock_doomed(box, [doomed.id]))

    def _first_look(self, box: Box, ask: Ask) -> int:
        """Groups that are hinted at are locked, and others pass by: not many more than the last claim could use."""
        expected = self._spread.get(box.key, ask.limit // 10)
        return min(expected + expected // 4 + 1, ask.limit, MOST_HINTS)

    def _has_looked(self, box: Box, useful: int) -> None:
        if useful:
            self._spread[box.key] = useful

    def _take_picked(self, box: Box, ask: Ask, picked: Picked, now: Any) -> Program[list[StoredMessage]]:
        wanted: list[tuple[int, int | str]] = [(id_, NULL) for id_ in picked.free]
        for front in picked.fronts.values():
            wanted += [(member.id, nth) for nth, member in enumerate(front, 1)]
        if not wanted:
            return []
        until = now + ask.lease
        # In the order of ids, each with its place in the answer.
        ids, nths, places = zip(*sorted((*each, place) for place, each in enumerate(wanted)), strict=True)
        taken = {
            "box": box.key,
            "ids": array_text(ids),
            "nths": array_text(nths),
            "held": [group for group, front in picked.fronts.items() if front[0].was_held],
            "places": array_text(places),
            "owner": ask.owner,
            "until": until,
        }
        found = yield Statement("take", taken)
        return rows.claimed(self.engine, found, ask.owner, until)

    def _late(self, box: Box, limit: int) -> Program[Sequence[Row]]:
        """All that is ready is read, a part at a time: a million rows take about a second."""
        late: list[Row] = list((yield Statement("late_in_lines", {"box": box.key, "limit": limit})))
        place: Place | None = BEGINNING
        while place is not None and len(late) < limit:
            where = {"since": place.available_at, "after": place.id, "rows": REAPED_AT_ONCE}
            [(ids, available_at, last)] = yield Statement("late", {"box": box.key, "limit": limit - len(late), **where})
            late += [(id_,) for id_ in ids]
            place = None if last is None else Place(available_at, last)
        return late

    # -- settle --------------------------------------------------------------------------------------------------

    def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        done = [(index, item.target) for index, item in enumerate(settlements) if isinstance(item.target, Claim)]
        successes = all(item.verdict == "done" for item in settlements) and len(done) == len(settlements)
        batches = list(batches_of_one_owner(done))
        simple = not box.order.fifo and box.keeping.on_success == "keep" and box.delivery.on_stale_ack == "done"
        if not (successes and simple and len(batches) == 1 and batches[0][0] == ask.owner):
            settled = yield from super().settle(box, settlements)
            claimed = yield from self.claim(box, ask)
            if ask.topics is not None:
                yield from self._notify_of_lines(box, settled)
            return settled, claimed
        since = self._frontier.since(box.key)
        owner, held = batches[0]
        asked = {**self._asked(box, ask, since), **self._proof(box, owner, held)}
        found = yield Statement("turn", asked, alone=True)
        kept = [False] * len(settlements)
        for id_ in found[0][_SETTLED]:
            kept[held[id_][0]] = True
        lines = found[0][_LINES]
        yield from self.promote(box, lines)
        taken = yield from self._receive(box, ask, found, since)
        yield from self.bury(box, taken.doomed)
        messages, left = taken.messages, taken.rest_of(ask)
        if left.limit and (since != BEGINNING or taken.doomed or taken.passed_over or lines):
            messages += yield from self.claim(box, left)
        return kept, messages

    def settle(self, box: Box, settlements: Sequence[Settlement]) -> Program[list[bool]]:
        kept = yield from super().settle(box, settlements)
        yield from self._notify_of_lines(box, kept)
        return kept

    def _notify_of_lines(self, box: Box, kept: list[bool]) -> Program[None]:
        """The next of a group may be for another worker: of another topic, or because this one claims nothing now."""
        if box.order.fifo and any(kept) and self._wakeups.tells(box.key, joined=False):
            yield Statement("notify", {"channel": self._channel, "box": box.key})

    def notify_of_lines(self, box: Box) -> Program[None]:
        if box.order.fifo and self._wakeups.tells(box.key, joined=True):
            yield Statement("notify", {"channel": self._channel, "box": box.key})

    def _complete(self, box: Box, done: Sequence[Indexed]) -> Program[list[int]]:
        settled: list[int] = []
        blank = box.keeping.on_success == "delete"
        batches = list(batches_of_one_owner(done))
        for owner, held in batches:
            alone = len(batches) == 1 and not box.order.fifo and not blank
            [(completed, lines)] = yield Statement("complete", self._proof(box, owner, held), alone=alone)
            if blank and completed:
                yield Statement("blank", {"ids": completed})
            yield from self.promote(box, lines)
            settled += [held[id_][0] for id_ in completed]
        return settled


def _limits(box: Box) -> dict[str, int | None]:
    return {"most": box.delivery.max_deliveries, "most_lost": box.delivery.max_lost_leases}


def _arrived(found: Sequence[Row]) -> Arrived:
    [(ids, known, _)] = found
    return Arrived(ids, frozenset(known or ()))


def _shared(values: list[str]) -> list[str]:
    """What is the same for all is sent once: drivers take as long for an item of an array as the server for a row."""
    return values[:1] if values.count(values[0]) == len(values) else values


def _unless_empty(values: list[Any]) -> list[Any] | None:
    return None if values.count(None) == len(values) else values
