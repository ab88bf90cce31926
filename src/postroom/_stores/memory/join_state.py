"""A join in memory, with its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from postroom._kernel.joins import JoinDraft, JoinStatus, JoinWait, StepCounts, StepStatus, is_filled


@dataclass(slots=True)
class Step:
    """A message as a step of a join."""

    attached_at: datetime
    outcome: StepStatus | None = None
    """Set if the state of the message does not show how the step has ended."""


@dataclass(slots=True, eq=False)
class JoinState:
    """A join with its steps."""

    draft: JoinDraft
    number: int
    created_at: datetime
    updated_at: datetime
    status: JoinStatus = JoinStatus.PENDING
    """Pending, until a claim finds that the join has ended."""
    is_sealed: bool = False
    steps: dict[int, Step] = field(default_factory=dict)
    """By the id of the message."""
    wait: JoinWait | None = None
    wait_id: int | None = None
    """The continuation."""
    counts: StepCounts | None = None
    """The steps when the join ended."""

    @property
    def is_filled(self) -> bool:
        return is_filled(self.draft.expected_steps, len(self.steps), is_sealed=self.is_sealed)

    def is_past_deadline(self, now: datetime) -> bool:
        return self.draft.deadline is not None and self.draft.deadline <= now

    def end(self, status: JoinStatus, counts: StepCounts, now: datetime) -> None:
        self.status, self.counts, self.updated_at = status, counts, now
