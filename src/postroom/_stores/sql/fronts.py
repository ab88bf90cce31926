"""Which rows a claim takes from a FIFO box: pure rules, no statements.

A claim reads *candidates*, rows that can be claimed by their time. A candidate only shows that its group may have work:
another member may be in line before it, or may be claimed. So the claim also reads the lines of the candidates' groups,
and picks the front of each line by the rules of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from postroom._kernel.line import claimable_front, without_suspects
from postroom._kernel.policy import cause_of_death, is_suspect
from postroom._stores.sql import rows
from postroom._stores.sql.endings import DeadLetter
from postroom._stores.sql.statements import StoredTime
from postroom.spi import Box, ClaimRequest, State

EMPTY_LINE = 0
"""The id in the one row of a line without members."""


class Candidate(NamedTuple):
    """A row of the statement `find_candidates`: a message, or a nudge (on PostgreSQL), which only names a group."""

    id: int
    """Nudges have ids of the same sequence as messages, so no message has the id of a nudge."""
    group: str | None
    expires: StoredTime
    deliveries: int
    lost_leases: int
    now: StoredTime
    """The time at which the statement ran."""
    waits: bool
    """Whether it is a continuation that waits for a join."""
    is_current: int = 1
    """Whether the next statement sees the rows as they are now: not in a transaction that keeps its snapshot."""


class Member(NamedTuple):
    """A row of the statement `read_lines`: a member of a line, in id order. If the group is held: only the first."""

    group: str
    holder: int | None
    """A member that holds the group: its lease has not expired, or the caller still works on it."""
    id: int
    code: int
    available_at: StoredTime
    delayed: bool
    expires: StoredTime
    deliveries: int
    lost_leases: int
    topic: str
    has_claims: int = 1
    """Whether members of the group are claimed. If none holds the group, their leases have expired."""

    @property
    def state(self) -> State:
        return rows.STATES[self.code]


class ReadLines(NamedTuple):
    """The part of some lines that was read. A read ends when it has enough rows."""

    lines: dict[str, list[Member]]
    last: str | None
    """The group in whose line the read ended, if it may have more members; None if all lines were read."""
    unread: frozenset[str]
    """The groups whose lines were not read."""


class Picked(NamedTuple):
    """What a claim does with some candidates."""

    ungrouped: list[int]
    """Ids to claim that are in no line."""
    fronts: dict[str, list[Member]]
    """Members to claim, by group."""
    behind: list[tuple[int, int]]
    """Candidates that must sleep, each with the id of the first in its line."""
    unread: set[int]
    """Candidates whose lines were not read far enough. The next read has them again."""
    dead_letter: DeadLetter | None
    """The first undeliverable message. The claim makes it dead and begins again."""


R = TypeVar("R", bound=Candidate | Member)


class FrontPicker:
    """Picks rows to claim among candidates and their lines."""

    def __init__(self, box: Box, request: ClaimRequest, now: StoredTime, held: dict[str, int], limit: int) -> None:
        """`held`: groups from which this claim has taken, with the first in their lines. `limit`: how many rows it may
        pick."""
        self._box, self._request, self._now = box, request, now
        self._first_of_held = dict(held)
        """Groups of which nothing can be picked, with the first in their lines."""
        self._left = limit
        """How many more rows it may pick."""
        self.took_suspect = False
        """Whether a suspect was picked, which is claimed alone."""
        self._picked = Picked([], {}, [], set(), None)

    def pick(self, candidates: Sequence[Candidate], read: ReadLines) -> Picked:
        unread = set(read.unread)
        for candidate in candidates:
            if self._left == 0 or self.took_suspect:
                break
            if candidate.group is None:
                dead_letter = self._pick_ungrouped(candidate)
            elif candidate.group in unread or self._needs_more_of(candidate.group, read):
                unread.add(candidate.group)
                self._picked.unread.add(candidate.id)
                continue
            else:
                dead_letter = self._pick_grouped(candidate, candidate.group, read.lines)
            if dead_letter is not None:
                return self._picked._replace(dead_letter=dead_letter)
        return self._picked

    def _needs_more_of(self, group: str, read: ReadLines) -> bool:
        """Returns True if it may pick more of the group than was read."""
        return group == read.last and group not in self._first_of_held and self._left > len(read.lines[group])

    def _pick_ungrouped(self, candidate: Candidate) -> DeadLetter | None:
        if cause := self._cause_of_death(candidate):
            return DeadLetter(candidate.id, None, cause)
        self._picked.ungrouped.extend(row.id for row in self._without_suspects([candidate]))
        return None

    def _pick_grouped(self, candidate: Candidate, group: str, lines: dict[str, list[Member]]) -> DeadLetter | None:
        if group not in self._first_of_held and (line := lines.get(group)):
            if line[0].id == EMPTY_LINE or line[0].holder is not None:
                self._first_of_held[group] = line[0].id  # nothing to pick: the candidate is a nudge, or must wait
            elif dead_letter := self._pick_front(group, line):
                return dead_letter
        picked = [member.id for member in self._picked.fronts.get(group, ())]
        first = self._first_of_held.get(group, lines[group][0].id if group in lines else candidate.id)
        if candidate.id not in picked and first != candidate.id:
            self._picked.behind.append((candidate.id, first))
        return None

    def _pick_front(self, group: str, line: list[Member]) -> DeadLetter | None:
        front = claimable_front(line, self._now, self._left, self._request.topics)
        for member in front:
            if cause := self._cause_of_death(member):
                return DeadLetter(member.id, group, cause)
        if front := self._without_suspects(front):
            self._picked.fronts[group] = front
            self._first_of_held[group] = front[0].id
        return None

    def _without_suspects(self, front: list[R]) -> list[R]:
        is_first = self._request.suspects and not (self._picked.ungrouped or self._picked.fronts)
        taken, self.took_suspect = without_suspects(front, self._is_suspect, is_first=is_first)
        self._left -= len(taken)
        return taken

    def _cause_of_death(self, row: Candidate | Member) -> str | None:
        deliveries, lost = row.deliveries, row.lost_leases
        return cause_of_death(self._box, deliveries=deliveries, lost_leases=lost, expires=row.expires, now=self._now)

    def _is_suspect(self, row: Candidate | Member) -> bool:
        return is_suspect(self._box, deliveries=row.deliveries, lost_leases=row.lost_leases)
