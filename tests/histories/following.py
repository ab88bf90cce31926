"""The state of a box in the memory store, for a model that follows the choices of another store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from postroom._kernel.policy import cause_of_death
from postroom._stores.memory.box_state import BoxState
from postroom._stores.memory.entry import Entry
from postroom.spi import Box, ClaimRequest, State, is_in_line


class FollowingBox(BoxState):
    """A box that looks at groups in a given order, and then at the rest in its own order."""

    preferred: Sequence[str | int] = ()
    """Groups, and ids of messages without a group."""

    def candidates(self, request: ClaimRequest, now: datetime) -> Iterator[Entry]:
        def rank(entry: Entry) -> tuple[int, datetime, int]:
            name = entry.line or entry.id
            position = self.preferred.index(name) if name in self.preferred else len(self.preferred)
            return position, entry.available_at or now, entry.id

        for entry in sorted(self.due(now), key=rank):
            still_due = entry.available_at is not None and entry.available_at <= now
            if still_due and (request.topics is None or entry.draft.topic in request.topics):
                yield entry

    def due(self, now: datetime) -> list[Entry]:
        return [e for e in self.entries.values() if e.available_at is not None and e.available_at <= now]

    def doomed(self, box: Box, now: datetime) -> list[Entry]:
        """Returns the messages that must not be claimed again. A claim buries those that it meets."""
        return [
            entry
            for entry in self.entries.values()
            if entry.state in {State.WAITING, State.CLAIMED}
            and cause_of_death(
                box,
                deliveries=entry.deliveries,
                lost_leases=entry.count_lost_leases(),
                expires=entry.expires,
                now=now,
            )
        ]

    def has_lapsed(self, now: datetime) -> bool:
        """Returns True if a lease has ended while a claim can choose between groups.

        A store may take the front of one group with or without a look at the other, which ends the claims there.
        """
        due = self.due(now)
        return len({e.line or e.id for e in due}) > 1 and any(e.state is State.CLAIMED for e in due)

    def claimable(self, now: datetime, topics: frozenset[str] | None) -> set[int]:
        """Returns the first in line of each group that is free and ready: a claim with room takes all of them."""
        found: set[int] = set()
        for group in self.lines:
            line = [entry for entry in self.line(group) if is_in_line(entry, now)]
            ends = [entry.available_at for entry in line if entry.state is State.CLAIMED]
            held = any(end is not None and end > now for end in ends)
            if line and not held and self.is_ready(line[0], now, topics):
                found.add(line[0].id)
        return found

    def is_ready(self, entry: Entry, now: datetime, topics: frozenset[str] | None) -> bool:
        wanted = topics is None or entry.topic in topics
        if entry.count_lost_leases():  # it may have to be claimed alone
            return False
        return wanted and entry.state is not State.DEAD and (entry.available_at is None or entry.available_at <= now)
