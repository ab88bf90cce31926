"""The line of a FIFO group: who may be claimed.

The members of a group stand in line in id order. Only the front of the line can be claimed, as far as it is ready; and
only while nobody holds a live lease on any member. A message whose due time lies ahead is not in line yet. A dead
message is in line only where `on_dead="block"`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from postroom._kernel.states import State


class Place(Protocol):
    """What the rules need to know of a member."""

    @property
    def state(self) -> State: ...
    @property
    def available_at(self) -> int | None: ...
    @property
    def fence(self) -> int: ...
    @property
    def topic(self) -> str: ...


M = TypeVar("M", bound=Place)


def is_in_line(place: Place, now: int) -> bool:
    """Not yet in line: waiting for its due time, and never claimed so far."""
    not_due = (
        place.state is State.WAITING
        and place.fence == 0
        and place.available_at is not None
        and place.available_at > now
    )
    return not not_due


def claimable_front(line: Iterable[M], now: int, limit: int, topics: frozenset[str] | None = None) -> list[M]:
    """The members that one claim may take, given the line from its front, while nobody holds the group.

    It ends where a member is not ready, and at a topic that was not asked for: nothing is overtaken.
    """
    front: list[M] = []
    for member in line:
        if not is_in_line(member, now):
            continue
        ready = member.available_at is None or member.available_at <= now
        wanted = topics is None or member.topic in topics
        if member.state is State.DEAD or not ready or not wanted or len(front) == limit:
            break
        front.append(member)
    return front
