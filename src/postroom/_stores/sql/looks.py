"""The look of a claim at the joins of continuations (docs/decisions/0015).

A claim looks at all continuations that it has read together. A look waits for no lock. It runs in these steps:

1. It locks the continuation, then its join. What another transaction has locked it leaves for a later claim.
2. If the join has all its steps, it marks one pending step as watched, under the row lock of that step. The transaction
   that ends a watched step wakes the continuation.
3. If it finds none to watch, it counts the steps. None pending: the join has ended. Otherwise pending steps are locked
   by transactions that may be about to end them, and the continuation is looked at again a moment later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from postroom._kernel.joins import StepCounts, failure_of
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.engine import Engine, Stored
from postroom._stores.sql.join_rows import JoinRow, count_steps, end_joins
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.statements import Many, SqlProgram, Statement, StoredTime, current_time
from postroom.spi import Box, ClaimRequest, Ending, JoinStatus

LOOK_AGAIN = timedelta(milliseconds=10)
"""After which a continuation is looked at again whose join, or whose pending steps, were locked."""
LONGEST_SLEEP = timedelta(hours=1)
"""After which a sleeping continuation is looked at in any case."""


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
        waits = {join: id_ for id_, join in found}
        joins = yield from self._locks.joins_now(box, list(waits))
        decided = yield from self._decide(box, waits, joins, request, now)
        return [id_ for id_ in ids if id_ not in decided]

    def _decide(
        self,
        box: Box,
        waits: dict[Stored, int],
        joins: Sequence[JoinRow],
        request: ClaimRequest,
        now: StoredTime,
    ) -> SqlProgram[set[int]]:
        """Lets continuations sleep, or ends their joins. Returns the continuations of which this is decided.

        One that sleeps may be due again before the claim ends: another continuation may be a step of its join.
        `waits`: continuations by join. `joins`: those that could be locked.
        """
        watched = yield from self._watch([join.id for join in joins if join.is_filled and not join.is_late(now)])
        undecided = [join for join in joins if join.id not in watched]
        counts = yield from count_steps(self._engine, [join.id for join in undecided])
        asleep = [join for join in joins if join.id in watched]
        again = waits.keys() - {join.id for join in joins}
        ended: list[tuple[JoinRow, JoinStatus, StepCounts]] = []
        for join in undecided:
            counted = counts.get(join.id, StepCounts())
            status = join.status_by(counted, now)
            if status is not JoinStatus.PENDING:
                ended.append((join, status, counted))
            elif join.is_filled:
                again.add(join.id)  # transactions that may be about to end its pending steps have locked them
            else:
                asleep.append(join)
        yield from self._sleep(waits, asleep, again, now)
        if request.expect is not None:
            moment = self._engine.moment
            for deadline in {join.deadline for join in asleep} - {None}:
                request.expect((moment(deadline) - moment(now)).total_seconds())
            if again:
                request.expect(LOOK_AGAIN.total_seconds())
        if ended:
            yield from self._end(box, waits, ended)
        return {waits[join] for join in waits.keys() - again}

    def _watch(self, joins: Sequence[Stored]) -> SqlProgram[set[Stored]]:
        """Marks a pending step of each join that has one which no other transaction has locked; returns these joins."""
        if not joins:
            return set()
        found = yield Statement("lock_pending_steps", {"joins": self._engine.array(list(joins))})
        # The mark is set under the row lock of the step: an ack of this step waits for the lock, and sees the mark.
        yield Many("watch_step", ("id",), [(id_,) for id_ in sorted({step for _, step in found})])
        return {join for join, _ in found}

    def _sleep(
        self, waits: dict[Stored, int], asleep: Sequence[JoinRow], again: set[Stored], now: StoredTime
    ) -> SqlProgram[None]:
        """Sets when continuations are looked at next, if nothing wakes them before."""
        # A join that had failed is pending again: its dead continuation was replayed.
        yield Many("reopen_join", ("id",), [(join.id,) for join in asleep if join.status])
        soon, latest = now + self._engine.duration(LOOK_AGAIN), now + self._engine.duration(LONGEST_SLEEP)
        times = {waits[join]: soon for join in again}
        for join in asleep:
            times[waits[join.id]] = latest if join.deadline is None else min(join.deadline, latest)
        yield Many("sleep_wait", ("id", "at"), sorted(times.items()))

    def _end(
        self, box: Box, waits: dict[Stored, int], ended: Sequence[tuple[JoinRow, JoinStatus, StepCounts]]
    ) -> SqlProgram[None]:
        """Ends joins. Their continuations get their follow-ups, or end."""
        yield end_joins(ended)
        followed: list[tuple[int, *tuple[object, ...]]] = []
        finished: list[int] = []
        dead_letters: list[DeadLetter] = []
        for join, status, counts in ended:
            follow_up = join.on_complete if status is JoinStatus.COMPLETED else join.on_fail
            if follow_up is not None:
                followed.append((waits[join.id], *follow_up))
            elif status is JoinStatus.COMPLETED:
                finished.append(waits[join.id])
            else:
                dead_letters.append(DeadLetter(waits[join.id], None, failure_of(counts)))
        followed.sort(key=lambda row: row[0])
        yield Many("set_follow_up", ("id", "topic", "payload", "format"), followed)
        yield Many("release_wait", ("id",), [row[:1] for row in followed])
        yield from self._endings.finish(box, finished, Ending.JOINED)
        yield from self._endings.make_dead(box, dead_letters)
