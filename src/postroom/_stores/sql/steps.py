"""Steps of joins: what the ends of messages do to them (docs/decisions/0015).

Whether a step has ended is read from the queue row of its message, in the view `postroom_step`. A program that ends
messages only has to wake the continuations of joins that watch one of them, in a later statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from postroom._kernel.joins import StepCounts
from postroom._stores.sql.engine import Engine, Stored
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.statements import Many, SqlProgram, Statement, StoredTime
from postroom.spi import Box


class Steps:
    """Wakes continuations, and keeps steps right when their messages are superseded or purged."""

    def __init__(self, engine: Engine, notifications: Notifications) -> None:
        self._engine = engine
        self._notifications = notifications

    def ended(self, box: Box, ids: Sequence[int]) -> SqlProgram[list[int]]:
        """Wakes the continuations of joins of which these messages are steps, and returns them. A claim then looks at
        the joins. It waits for locked continuations, so a transaction calls it once, for all its messages."""
        if not ids or not box.can_have_joins:
            return []
        woken = yield Statement("wake_continuations", {"ids": self._engine.array(sorted(ids))})
        if woken:
            yield from self._notifications.send(box)
        return [id_ for (id_,) in woken]

    def watch(self, joins: Sequence[Stored]) -> SqlProgram[dict[Stored, StepCounts]]:
        """Marks a pending step of each join. The transaction that ends a marked step wakes the continuation.

        Returns the steps by status of joins of which none is marked: no step is pending, or other transactions have
        locked all that are. The mark is set under the row lock of the step: an ack of this step waits for the lock, and
        sees the mark.
        """
        if not joins:
            return {}
        found = yield Statement("lock_pending_steps", {"joins": self._engine.array(list(joins))})
        yield Many("watch_step", ("id",), [(id_,) for id_ in sorted({step for _, step, *_ in found} - {None})])
        return {join: StepCounts(*counts) for join, step, *counts in found if step is None}

    def superseded(self, box: Box, ids: Sequence[int], by: int, join: UUID | None) -> SqlProgram[None]:
        """Puts a new message in the place of steps that it supersedes, except in `join`, of which it becomes a step."""
        if not ids or not box.can_have_joins:
            return
        old = self._engine.array(sorted(ids))
        except_join = None if join is None else self._engine.token(join)
        replaced = yield Statement("replace_steps", {"ids": old, "new": by, "join": except_join})
        if replaced:
            yield Statement("watch_instead", {"ids": old, "new": by})

    def purged(self, box: Box, failed: Sequence[int]) -> SqlProgram[None]:
        """Keeps the outcome of steps whose messages had failed and are deleted."""
        if failed and box.can_have_joins:
            yield Statement("keep_failures", {"ids": self._engine.array(sorted(failed))})

    def purge(self, box: Box, cutoff: StoredTime, limit: int) -> SqlProgram[None]:
        """Deletes joins that have ended before `cutoff`, steps first: at most `limit` rows of each."""
        if box.can_have_joins:
            parameters = {"box": box.key, "cutoff": cutoff, "limit": limit}
            yield Statement("purge_steps", parameters)
            yield Statement("purge_joins", parameters)
