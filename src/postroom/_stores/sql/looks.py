"""The look of a claim at the joins of continuations (docs/decisions/0015).

A look waits for no lock. It runs in these steps:

1. It locks the continuation, then its join. What another transaction has locked it leaves for a later claim.
2. If the join has all its steps, it marks one pending step as watched, under the row lock of that step. The transaction
   that ends a watched step wakes the continuation.
3. If it finds none to watch, it counts the steps. None pending: the join has ended. Otherwise pending steps are locked
   by transactions that may be about to end them, and the continuation is looked at again a moment later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from postroom._kernel.joins import StepCounts, failure_of
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.engine import Engine, Stored
from postroom._stores.sql.join_rows import JoinRow, count_steps, end_join
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.statements import SqlProgram, Statement, StoredTime, current_time
from postroom.spi import Box, ClaimRequest, Ending, JoinStatus

LOOK_AGAIN = timedelta(milliseconds=10)
"""After which a continuation is looked at again whose join, or whose pending steps, were locked."""
LONGEST_SLEEP = timedelta(hours=1)
"""After which a sleeping continuation is looked at in any case."""


class Looked(NamedTuple):
    """A row of the statement `lock_waits`: a continuation."""

    id: int
    join: Stored


class Looks:
    """What a claim does with continuations that are due."""

    def __init__(self, engine: Engine, *, locks: Locks, endings: Endings) -> None:
        self._engine = engine
        self._locks = locks
        self._endings = endings

    def look(self, box: Box, ids: Sequence[int], request: ClaimRequest) -> SqlProgram[list[int]]:
        """Looks at the joins of these continuations. Returns the ids of those that this claim must not see again."""
        if not ids:
            return []
        now = yield from current_time()
        found = yield Statement("lock_waits", {"ids": self._engine.array(sorted(ids))})
        released: list[int] = []
        for row in found:
            if (yield from self._look(box, Looked(*row), request, now)):
                released.append(row[0])
        return [id_ for id_ in ids if id_ not in released]

    def _look(self, box: Box, wait: Looked, request: ClaimRequest, now: StoredTime) -> SqlProgram[bool]:
        """Returns True if the continuation can be claimed now."""
        join = yield from self._locks.join(box, self._engine.owner(wait.join), "now")
        if join is None:
            return (yield from self._again(wait, request, now))
        if join.is_filled and not join.is_past_deadline(now):
            watched = yield Statement("watch_step", {"join": wait.join})
            if watched:
                return (yield from self._sleep(wait, join, now))
        counts = (yield from count_steps(self._engine, [wait.join])).get(join.id, StepCounts())
        status = join.status_by(counts, now)
        if status is JoinStatus.PENDING:
            if join.is_filled:
                return (yield from self._again(wait, request, now))
            return (yield from self._sleep(wait, join, now))
        return (yield from self._end(box, wait, join, status, counts))

    def _again(self, wait: Looked, request: ClaimRequest, now: StoredTime) -> SqlProgram[bool]:
        yield Statement("sleep_wait", {"id": wait.id, "at": now + self._engine.duration(LOOK_AGAIN)})
        if request.expect is not None:
            request.expect(LOOK_AGAIN.total_seconds())
        return False

    def _sleep(self, wait: Looked, join: JoinRow, now: StoredTime) -> SqlProgram[bool]:
        if join.status != 0:
            yield Statement("reopen_join", {"id": wait.join})  # its dead continuation was replayed
        latest = now + self._engine.duration(LONGEST_SLEEP)
        at = latest if join.deadline is None else min(join.deadline, latest)
        yield Statement("sleep_wait", {"id": wait.id, "at": at})
        return False

    def _end(self, box: Box, wait: Looked, join: JoinRow, status: JoinStatus, counts: StepCounts) -> SqlProgram[bool]:
        yield end_join(join, status, counts)
        follow_up = join.on_complete if status is JoinStatus.COMPLETED else join.on_fail
        if follow_up is not None:
            yield Statement("set_follow_up", {"id": wait.id, **follow_up._asdict()})
            yield Statement("release_wait", {"id": wait.id})
            return True
        if status is JoinStatus.COMPLETED:
            yield from self._endings.finish(box, [wait.id], Ending.JOINED)
        else:
            yield from self._endings.make_dead(box, [DeadLetter(wait.id, None, failure_of(counts))])
        return False
