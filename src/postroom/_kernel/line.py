"""The line of a FIFO group: who may be claimed.

The members of a group stand in line in id order. Only the front of the line can be claimed, as far as it is ready; and
only while no other worker holds a live lease on any member. A message whose due time lies ahead is not in line yet. A
dead message is in line only where `on_dead="block"`.

A member that stands behind the first may sleep: it has no time from which it can be claimed, and the store wakes it
when the front moves on. The first in line never sleeps, even while a member behind it holds the group: a worker that
claims its topic finds it, whatever becomes of that holder.

Whether somebody is in line must not depend on whose clock is ahead: a claim may see messages that are younger than its
own moment, and a server that takes over may have another time. So only a message with a due time can be early, and it
has a mark, which is its fence: it has none yet, since it was never claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
T = TypeVar("T")
EARLY = -1
"""The fence of whoever stands in a line only from a due time on. It goes when the message is claimed or has no time."""


def is_in_line(place: Place, now: int) -> bool:
    """Whether its due time, if it has one ahead, has come."""
    return not (place.fence == EARLY and place.available_at is not None and place.available_at > now)


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


def without_suspects(front: list[T], is_suspect: Callable[[T], bool], *, is_first: bool) -> tuple[list[T], bool]:
    """Suspects are claimed alone: what a claim may take of a front, and whether that is a suspect.

    `is_first`: nothing else is claimed yet, so it may be a suspect.
    """
    for index, member in enumerate(front):
        if is_suspect(member):
            alone = index == 0 and is_first
            return front[: 1 if alone else index], alone
    return front, False
