"""Rows of the table `postroom_join`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from postroom._kernel.joins import FollowUp, JoinId, StepCounts, is_filled, status_of
from postroom._stores.sql.engine import Engine, Stored
from postroom._stores.sql.statements import Many, SqlProgram, Statement, StoredTime
from postroom.spi import Join, JoinStatus, StepStatus

STATUSES = tuple(JoinStatus)
"""The status of each code in the column `status`."""
STEP_STATUSES = tuple(StepStatus)
"""The status of each code in the view `postroom_step`."""


class JoinRow(NamedTuple):
    """A row of the statements `find_join`, `find_joins` and, behind the continuation and the time, `lock_waits`."""

    id: Stored
    number: int
    tenant_id: str
    expected_steps: int | None
    attached_steps: int
    completed_steps: int | None
    failed_steps: int | None
    status: int
    sealed: bool
    fails: bool
    wait_id: int | None
    metadata: str | None
    deadline: StoredTime
    created_at: StoredTime
    updated_at: StoredTime
    on_complete: FollowUp | None
    on_fail: FollowUp | None

    @classmethod
    def of(cls, row: tuple[Stored, ...]) -> JoinRow:
        """Returns the row of a statement. Its last six columns are the follow-ups."""
        topic, payload, format_, fail_topic, fail_payload, fail_format = row[-6:]
        on_complete = None if topic is None else FollowUp(topic, payload, format_)
        on_fail = None if fail_topic is None else FollowUp(fail_topic, fail_payload, fail_format)
        return cls._make((*row[:-6], on_complete, on_fail))

    @property
    def is_filled(self) -> bool:
        return is_filled(self.expected_steps, self.attached_steps, is_sealed=bool(self.sealed))

    def is_late(self, now: StoredTime) -> bool:
        return self.deadline is not None and bool(self.deadline <= now)

    def status_by(self, counts: StepCounts, now: StoredTime) -> JoinStatus:
        """Returns the status by the states of its steps."""
        return status_of(
            counts,
            filled=self.is_filled,
            fail_if_any_step_failed=bool(self.fails),
            is_past_deadline=self.is_late(now),
        )

    def to_join(self, engine: Engine, counts: StepCounts, now: StoredTime) -> Join:
        """Returns the join. `counts`: its steps now, if it is not known to have ended."""
        status, completed, failed = STATUSES[self.status], self.completed_steps, self.failed_steps
        if completed is None or failed is None:
            status, completed, failed = self.status_by(counts, now), counts.completed, counts.failed
        attached = sum(counts) if self.expected_steps is None and not self.status else self.attached_steps
        moment = engine.moment
        return Join(
            JoinId(int=engine.owner(self.id).int),
            self.tenant_id,
            status,
            self.expected_steps,
            attached,
            completed,
            failed,
            bool(self.sealed),
            self.metadata,
            None if self.deadline is None else moment(self.deadline),
            moment(self.created_at),
            moment(self.updated_at),
            self.number,
        )


def count_steps(engine: Engine, joins: Sequence[Stored]) -> SqlProgram[dict[Stored, StepCounts]]:
    """Returns the steps of joins by status."""
    if not joins:
        return {}
    found = yield Statement("count_steps", {"joins": engine.array(list(joins))})
    return {join: StepCounts(*counts) for join, *counts in found}


def end_joins(ended: Sequence[tuple[JoinRow, JoinStatus, StepCounts]]) -> Many:
    """Returns the step that stores the ends of joins."""
    rows = [
        (join.id, STATUSES.index(status), counts.completed, counts.failed, sum(counts))
        for join, status, counts in ended
    ]
    rows.sort(key=lambda row: row[0])  # the statement of PostgreSQL needs the order of the ids
    return Many("end_join", ("id", "status", "completed", "failed", "attached"), rows)
