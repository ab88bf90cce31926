"""The line of a FIFO group: which members a claim may take.

The members of a group are in line in id order. A claim takes the *front* of the line: the first members, as far as
they are ready and fit into the claim. It takes none while another worker has a live lease on any member. A dead message
is in line only with `on_dead="block"`.

A waiting member behind the first may sleep: its `available_at` is None, and the store sets a time when it becomes the
first. The first in line never sleeps, not even while a member behind it is claimed. So every claim for its topic finds
the group, however the lease on that other member ends.

A message with a due time ahead is not in line yet. The store marks it as `delayed` when it stores the due time, and
removes the mark when the message is claimed or loses its due time. A comparison of times alone would not do: clocks
differ, so a claim may see a message without a due time that is younger than the claim's own time. Such a message is in
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Protocol, TypeVar

from postroom._kernel.states import State

Time_co = TypeVar("Time_co", int, datetime, covariant=True)


class LineMember(Protocol[Time_co]):
    """What the rules read of a member. Times are microseconds or datetimes, as the store represents them."""

    @property
    def state(self) -> State:
        """Waiting, claimed or, in a blocked group, dead."""

    @property
    def available_at(self) -> Time_co | None:
        """Waiting: the time from which it can be claimed, or None while it sleeps. Claimed: the end of the lease."""

    @property
    def delayed(self) -> bool:
        """Whether it is in line only from `available_at` on."""

    @property
    def topic(self) -> str:
        """A claim may be restricted to topics."""


M = TypeVar("M", bound=LineMember[Any])
T = TypeVar("T")


def is_in_line(member: LineMember[Any], now: int | datetime) -> bool:
    """Returns False if the `member` has a due time that is after `now`."""
    return not (member.delayed and member.available_at is not None and member.available_at > now)


def claimable_front(
    line: Iterable[M], now: int | datetime, limit: int, topics: frozenset[str] | None = None
) -> list[M]:
    """Returns the front of a `line` that no other worker holds. `line`: its members in id order.

    The front ends at a member that is not ready `now`, at a topic that is not in `topics`, and after `limit` members.
    No member is overtaken.
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
    """Returns the part of a `front` that a claim may take, and whether that part is one suspect.

    A member for which `is_suspect` is true is claimed alone. `is_first`: the claim has taken nothing yet, so it may
    take a suspect.
    """
    for index, member in enumerate(front):
        if is_suspect(member):
            alone = index == 0 and is_first
            return front[: 1 if alone else index], alone
    return front, False
