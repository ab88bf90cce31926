"""The look of a claim at the joins of continuations (docs/decisions/0015).

A claim looks at all continuations that it has read, and at those that its settlement has woken, together. A look waits
for no lock. It runs in these steps:

1. It locks the continuation and its join. What another transaction has locked it leaves for a later claim.
2. If the join has all its steps, it marks one pending step as watched (`Steps.watch`), and the continuation sleeps.
3. If it finds none to watch, it counts the steps. None pending: the join has ended. Otherwise pending steps are locked
   by transactions that may be about to end them, and the continuation is looked at again a moment later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from postroom._kernel.joins import FollowUp, StepCounts, failure_of
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.join_rows import JoinRow, count_steps, end_joins
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.statements import Many, SqlProgram, Statement, StoredTime
from postroom._stores.sql.steps import Steps
from postroom.spi import Box, ClaimRequest, Ending, JoinStatus

LOOK_AGAIN = timedelta(milliseconds=10)
"""After which a continuation is looked at again that was locked, or whose join or pending steps were locked."""
LONGEST_SLEEP = timedelta(hours=1)
"""After which a sleeping continuation is looked at in any case."""


class _End(NamedTuple):
    """The end of a join that a look has found."""

    wait: int
    join: JoinRow
    status: JoinStatus
    counts: StepCounts

    @property
    def follow_up(self) -> FollowUp | None:
        return self.join.on_complete if self.status is JoinStatus.COMPLETED else self.join.on_fail


class Looks:
    """What a claim does with continuations that are due."""

    def __init__(self, engine: Engine, *, locks: Locks, endings: Endings, steps: Steps) -> None:
        self._engine = engine
        self._endings = endings
        self._steps = steps
        self._locks = locks

    def look(self, box: Box, ids: Sequence[int], request: ClaimRequest) -> SqlProgram[list[int]]:
        """Looks at the joins of these continuations. Returns the ids of those that this claim must not see again.

        One that is decided on is not among them: it may be due again before the claim ends, since another continuation
        may be a step of its join.
        """
        if not ids:
            return []
        found = yield Statement("lock_waits", {"ids": self._engine.array(sorted(ids))})
        left = set(ids) - {row[0] for row in found}
        if found:
            waits = {row[0]: JoinRow.of(row[2:]) for row in found}
            left |= yield from self._decide(box, waits, request, found[0][1])
        if left and request.expect is not None:
            request.expect(LOOK_AGAIN.total_seconds())
        return [id_ for id_ in ids if id_ in left]

    def _decide(
        self, box: Box, waits: dict[int, JoinRow], request: ClaimRequest, now: StoredTime
    ) -> SqlProgram[set[int]]:
        """Lets continuations sleep, or ends their joins. Returns those to look at again. `waits`: by continuation."""
        late = [join.id for join in waits.values() if join.is_late(now)]
        filled = [join.id for join in waits.values() if join.is_filled and not join.is_late(now)]
        counts = yield from self._steps.watch(filled)
        counts |= yield from count_steps(self._engine, late)
        asleep: dict[int, JoinRow] = {}
        again: set[int] = set()
        ends: list[_End] = []
        for id_, join in waits.items():
            counted = counts.get(join.id, StepCounts())
            if join.id not in counts and not join.is_late(now):
                asleep[id_] = join  # it has a watched step, or too few steps
            elif (status := join.status_by(counted, now)) is not JoinStatus.PENDING:
                ends.append(_End(id_, join, status, counted))
            else:
                again.add(id_)  # transactions that may be about to end its pending steps have locked them
        blocked = yield from self._locks.blocked_ends(box, [end.wait for end in ends if end.follow_up is None])
        again |= blocked  # the end of such a continuation would wait for a lock
        yield from self._sleep(asleep, again, now)
        if request.expect is not None:
            moment = self._engine.moment
            for deadline in {join.deadline for join in asleep.values()} - {None}:
                request.expect((moment(deadline) - moment(now)).total_seconds())
        yield from self._end(box, [end for end in ends if end.wait not in blocked])
        return again

    def _sleep(self, asleep: dict[int, JoinRow], again: set[int], now: StoredTime) -> SqlProgram[None]:
        """Sets when continuations are looked at next, if nothing wakes them before."""
        # A join that had failed is pending again: its dead continuation was replayed.
        yield Many("reopen_join", ("id",), [(join.id,) for join in asleep.values() if join.status])
        soon, latest = now + self._engine.duration(LOOK_AGAIN), now + self._engine.duration(LONGEST_SLEEP)
        times = dict.fromkeys(again, soon)
        for id_, join in asleep.items():
            times[id_] = latest if join.deadline is None else min(join.deadline, latest)
        yield Many("sleep_wait", ("id", "at"), sorted(times.items()))

    def _end(self, box: Box, ends: Sequence[_End]) -> SqlProgram[None]:
        """Ends joins. Their continuations get their follow-ups, or end."""
        yield end_joins([end[1:] for end in ends])
        followed = sorted((end.wait, *end.follow_up) for end in ends if end.follow_up is not None)
        yield Many("set_follow_up", ("id", "topic", "payload", "format"), followed)
        yield Many("release_wait", ("id",), [row[:1] for row in followed])
        silent = [end for end in ends if end.follow_up is None]
        finished = [end.wait for end in silent if end.status is JoinStatus.COMPLETED]
        failed = [end for end in silent if end.status is not JoinStatus.COMPLETED]
        yield from self._endings.finish(box, finished, Ending.JOINED)
        yield from self._endings.make_dead(box, [DeadLetter(end.wait, None, failure_of(end.counts)) for end in failed])
