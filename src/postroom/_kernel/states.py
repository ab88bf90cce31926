"""The one state machine, and the names that inbox and outbox give to its states."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Literal

BoxKind = Literal["inbox", "outbox"]


class State(StrEnum):
    """Where a message stands."""

    SEEN = "seen"
    """Its key was checked; there is nothing to handle yet."""
    WAITING = "waiting"
    """It will be claimed: now, when it is due, or when its group's turn comes."""
    CLAIMED = "claimed"
    """A worker holds a lease on it."""
    DONE = "done"
    DEAD = "dead"
    """Given up; kept, listed and replayable."""


class Ending(StrEnum):
    """How a message came to be done."""

    HANDLED = "handled"
    MARKED = "marked"
    """By `mark_processed`, without a claim."""
    SUPERSEDED = "superseded"
    """A newer message with the same collapse key took its place."""
    DISCARDED = "discarded"
    """It died in a box with `dead_letter="discard"`."""
    CANCELLED = "cancelled"
    """By `cancel`, while it waited."""


TRANSITIONS: MappingProxyType[State, frozenset[State]] = MappingProxyType(
    {
        # enqueue and mark_processing; mark_processed; mark_dead
        State.SEEN: frozenset({State.WAITING, State.DONE, State.DEAD}),
        # claim; collapse, cancel and mark_processed; expiry, delivery limit and mark_dead
        State.WAITING: frozenset({State.CLAIMED, State.DONE, State.DEAD}),
        # abandon, release and reap; claim after the lease has passed; ack; fail
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
}


def documented_name(state: State, kind: BoxKind) -> str:
    """The state's name in the inbox's or the outbox's own words."""
    return _DOCUMENTED[kind][state]
