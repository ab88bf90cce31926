"""Joins: one continuation after several messages (docs/decisions/0015). Values, and the rules that stores share."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from postroom._kernel.message import AnyMessage, Format, Receipt, ReceiptStatus
from postroom._kernel.states import Ending, State

FAILED_ENDINGS = frozenset({Ending.DISCARDED, Ending.CANCELLED})
"""A step whose message is done with one of these endings has failed."""
WAIT_TOPIC = "join.wait"
"""The topic of a continuation while its join is pending."""


WAITS_FOR_ITSELF = (
    "the join would wait for itself: this message is its continuation, or the continuation of a join that waits for it"
)


class JoinId(uuid.UUID):
    """Identifies a join."""

    @classmethod
    def new(cls) -> JoinId:
        """Returns a random id."""
        return cls(bytes=uuid.uuid4().bytes)


class JoinStatus(StrEnum):
    """The status of a join."""

    PENDING = "pending"
    """A step has not ended, or more steps are expected."""
    COMPLETED = "completed"
    """All steps have ended, and the join has not failed."""
    FAILED = "failed"
    """A step has failed and the join fails with it, or the deadline has passed."""
    CANCELLED = "cancelled"
    """By `cancel_join`."""


class StepStatus(StrEnum):
    """The status of a step."""

    PENDING = "pending"
    """Its message is not done and not dead."""
    COMPLETED = "completed"
    """Its message is done, or it was reported as completed."""
    FAILED = "failed"
    """Its message is dead, was discarded or cancelled, or it was reported as failed."""


class JoinDraft(NamedTuple):
    """A join on its way into a store."""

    id: UUID
    tenant_id: str
    expected_steps: int | None = None
    """None: an open join, which is sealed when all steps are attached."""
    metadata: str | None = None
    deadline: datetime | None = None


class FollowUp(NamedTuple):
    """The topic and the encoded payload that a continuation gets when its join ends."""

    topic: str
    payload: str | bytes
    format: Format


class JoinWait(NamedTuple):
    """What a continuation becomes when its join ends."""

    join: UUID
    fail_if_any_step_failed: bool = True
    on_complete: FollowUp | None = None
    on_fail: FollowUp | None = None


class StepCounts(NamedTuple):
    """The number of steps of a join by status."""

    pending: int = 0
    completed: int = 0
    failed: int = 0


class Join(NamedTuple):
    """A join, from `get_join` and `joins`."""

    id: JoinId
    tenant_id: str
    status: JoinStatus
    expected_steps: int | None
    """None: an open join."""
    attached_steps: int
    completed_steps: int
    failed_steps: int
    is_sealed: bool
    """True if no more steps can be attached to an open join."""
    metadata: str | None
    deadline: datetime | None
    created_at: datetime
    updated_at: datetime
    """When it was started, filled, sealed, or when it ended."""
    number: int
    """Ascending in the order in which joins were started: for the next page of `joins`."""


class JoinStep(NamedTuple):
    """A message that is a step of a join, from `join_steps`."""

    id: int
    """The id of the message in its store: for the next page of `join_steps`."""
    source: str | None
    """None, as `message_id`, if the message was purged."""
    message_id: str | None
    status: StepStatus
    attached_at: datetime


class JoinFilter(NamedTuple):
    """Selects joins. A field that is None does not restrict. Results are in the order of `number`, above `after`."""

    ids: tuple[UUID, ...] | None = None
    tenant_id: str | None = None
    statuses: frozenset[JoinStatus] | None = None
    after: int = 0
    limit: int = 100


def is_filled(expected: int | None, attached: int, *, is_sealed: bool) -> bool:
    """Returns True if a join has all its steps."""
    return is_sealed if expected is None else attached >= expected


def status_of(counts: StepCounts, *, filled: bool, fail_if_any_step_failed: bool, is_past_deadline: bool) -> JoinStatus:
    """Returns the status of a join that is not known to have ended, by the states of its steps."""
    if filled and not counts.pending:
        return JoinStatus.FAILED if counts.failed and fail_if_any_step_failed else JoinStatus.COMPLETED
    return JoinStatus.FAILED if is_past_deadline else JoinStatus.PENDING


def receipt_of_known(continuation: AnyMessage) -> Receipt:
    """Returns the receipt of a second wait for a join: the continuation is there, and stays as it is."""
    statuses = {State.DONE: ReceiptStatus.DONE, State.DEAD: ReceiptStatus.DEAD}
    status = statuses.get(continuation.state, ReceiptStatus.DUPLICATE)
    return Receipt(status, continuation.id, continuation.source, continuation.message_id, continuation.state)


def failure_of(counts: StepCounts) -> str:
    """Returns the error of a continuation whose join has failed and has no follow-up for this."""
    ended = counts.completed + counts.failed
    if counts.pending or not counts.failed:
        return f"the join failed: its deadline has passed, and {ended} of its steps have ended"
    return f"the join failed: {counts.failed} of {ended} steps failed"
