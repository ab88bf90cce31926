"""The state machine of a message, and the names of its states in an inbox, in an outbox and in a guard."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Literal

BoxKind = Literal["inbox", "outbox", "guard"]


class State(StrEnum):
    """The state of a message."""

    SEEN = "seen"
    """Its key was recorded; there is nothing to handle yet."""
    WAITING = "waiting"
    """It can be claimed now, when it is due, or when it is the first in the line of its FIFO group."""
    CLAIMED = "claimed"
    """A worker has a lease on it. The lease may have passed."""
    DONE = "done"
    DEAD = "dead"
    """Not tried again. It is kept, and can be replayed."""


class Ending(StrEnum):
    """How a message became done."""

    HANDLED = "handled"
    MARKED = "marked"
    """By `mark_processed`, without a claim."""
    SUPERSEDED = "superseded"
    """A newer message with the same collapse key replaced it."""
    DISCARDED = "discarded"
    """It died in a box with `dead_letter="discard"`."""
    CANCELLED = "cancelled"
    """By `cancel` or `cancel_join`, while it waited."""
    JOINED = "joined"
    """It waited for a join that has completed and sends nothing."""


TRANSITIONS: MappingProxyType[State, frozenset[State]] = MappingProxyType(
    {
        # enqueue and mark_processing; begin; mark_processed; mark_dead
        State.SEEN: frozenset({State.WAITING, State.CLAIMED, State.DONE, State.DEAD}),
        # claim and begin; collapse, cancel and mark_processed; expiry, delivery limit and mark_dead
        State.WAITING: frozenset({State.CLAIMED, State.DONE, State.DEAD}),
        # abandon, release and reap; claim and begin after the lease has passed; ack; fail
        State.CLAIMED: frozenset({State.WAITING, State.CLAIMED, State.DONE, State.DEAD}),
        # replay; mark_processed
        State.DEAD: frozenset({State.WAITING, State.DONE}),
        State.DONE: frozenset(),
    }
)

_DOCUMENTED: dict[BoxKind, dict[State, str]] = {
    "inbox": {
        State.SEEN: "Seen",
        State.WAITING: "Processing",
        State.CLAIMED: "Processing",
        State.DONE: "Done",
        State.DEAD: "Dead",
    },
    "outbox": {
        State.SEEN: "Seen",
        State.WAITING: "Ready",
        State.CLAIMED: "InProgress",
        State.DONE: "Done",
        State.DEAD: "Failed",
    },
    "guard": {
        State.SEEN: "Seen",
        State.WAITING: "Seen",
        State.CLAIMED: "Processing",
        State.DONE: "Done",
        State.DEAD: "Dead",
    },
}


def documented_name(state: State, kind: BoxKind) -> str:
    """Returns the name of a state in the documentation of inboxes, outboxes or guards."""
    return _DOCUMENTED[kind][state]
