"""Claiming from FIFO lines, as programs (docs/decisions/0005 and 0008).

A row whose time has come is only a *hint* that its group may have work. A claim reads the lines of the hinted groups,
takes their fronts by the rules of the kernel, and lets the other hints sleep until the first in line leaves. The first
in line itself never sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from postroom._kernel.line import claimable_front, without_suspects
from postroom._kernel.policy import cause_of_death, is_suspect
from postroom._kernel.program import Program
from postroom._stores.sql import rows
from postroom._stores.sql.engines.base import Engine
from postroom._stores.sql.statements import Many, Statement
from postroom.spi import Ask, Box, State

LONGEST_LOOK, MOST_HINTS = 200, 5000
"""How many hints are looked at together, and in one claim: where groups are blocked, a claim must still end."""


NOBODY = 0
"""The id that stands for an empty line."""


class Hint(NamedTuple):
    """A row of the statement `hints`."""

    id: int
    group: str | None
    expires: Any
    deliveries: int
    lost_leases: int
    now: Any
    """When it was read."""
    is_current: int = 1
    """Whether what is read next is what is now: not so in a transaction that reads an old snapshot."""


class Member(NamedTuple):
    """A row of the statement `lines`: a member of a line, from its front. Of a group that is held, only the first."""

    group: str
    holder: int | None
    """The member that holds the group, by a lease that has not passed or because the caller still works on it."""
    id: int
    code: int
    available_at: Any
    fence: int
    expires: Any
    deliveries: int
    lost_leases: int
    topic: str
    was_held: int = 1
    """Whether, of a group without a holder, somebody may have claims that are worth nothing any more."""

    @property
    def state(self) -> State:
        return rows.STATES[self.code]


class Read(NamedTuple):
    """What was read of some lines: it ends when there are enough rows, whether or not they can be taken."""

    lines: dict[str, list[Member]]
    cut: str | None
    """The group at which the reading ended: there may be more of it."""
    unread: frozenset[str]
    """The groups to which it did not come. Those that another claim is at are none of them."""


class Doomed(NamedTuple):
    """What must not be claimed again, and why."""

    id: int
    group: str | None
    cause: str
    counts: bool = False
    """Whether the execution that led to this counts as an attempt."""


class Picked(NamedTuple):
    """What a look at some hints has shown."""

    free: list[int]
    """Ids that stand in no line."""
    fronts: dict[str, list[Member]]
    """Groups → who stands at the front of their lines."""
    asleep: list[tuple[int, int]]
    """Hints that must wait, each with the id of the first in its line."""
    unread: set[int]
    """Hints whose lines have not been read far enough: they are for the next look."""
    doomed: Doomed | None
    """The first that must not be claimed: it is buried, and the look repeated."""


R = TypeVar("R", bound=Hint | Member)


class Look:
    """One look at hints: pure rules, no statements."""

    def __init__(self, box: Box, ask: Ask, now: Any, held: dict[str, int], room: int) -> None:
        self._box, self._ask, self._now = box, ask, now
        self._held = dict(held)
        """Groups that give nothing more → the first in their lines."""
        self._room = room
        self.took_suspect = False
        """Then nothing else is taken."""
        self._picked = Picked([], {}, [], set(), None)

    def pick(self, hints: Sequence[Hint], read: Read) -> Picked:
        unread = set(read.unread)
        for hint in hints:
            if self._room == 0 or self.took_suspect:
                break
            if hint.group is None:
                doomed = self._alone(hint)
            elif hint.group in unread or self._wants_more(hint.group, read):
                unread.add(hint.group)
                self._picked.unread.add(hint.id)
                continue
            else:
                doomed = self._in_line(hint, hint.group, read.lines)
            if doomed is not None:
                return self._picked._replace(doomed=doomed)
        return self._picked

    def _wants_more(self, group: str, read: Read) -> bool:
        """Whether those before it have left room for more of it than was read."""
        return group == read.cut and group not in self._held and self._room > len(read.lines[group])

    def _alone(self, hint: Hint) -> Doomed | None:
        if cause := self._cause(hint):
            return Doomed(hint.id, None, cause)
        self._picked.free.extend(member.id for member in self._without_suspects([hint]))
        return None

    def _in_line(self, hint: Hint, group: str, lines: dict[str, list[Member]]) -> Doomed | None:
        if group not in self._held and (line := lines.get(group)):
            if line[0].id == NOBODY or line[0].holder is not None:
                self._held[group] = line[0].id
            elif doomed := self._take(group, line):
                return doomed
        taken = [member.id for member in self._picked.fronts.get(group, ())]
        ahead = self._held.get(group, lines[group][0].id if group in lines else hint.id)
        if hint.id not in taken and ahead != hint.id:
            self._picked.asleep.append((hint.id, ahead))
        return None

    def _take(self, group: str, line: list[Member]) -> Doomed | None:
        front = claimable_front(line, self._now, self._room, self._ask.topics)
        for member in front:
            if cause := self._cause(member):
                return Doomed(member.id, group, cause)
        if front := self._without_suspects(front):
            self._picked.fronts[group] = front
            self._held[group] = front[0].id
        return None

    def _without_suspects(self, front: list[R]) -> list[R]:
        is_first = self._ask.suspects and not (self._picked.free or self._picked.fronts)
        taken, self.took_suspect = without_suspects(front, self._is_suspect, is_first=is_first)
        self._room -= len(taken)
        return taken

    def _cause(self, row: Hint | Member) -> str | None:
        lost = row.lost_leases
        return cause_of_death(
            self._box, deliveries=row.deliveries, lost_leases=lost, expires=row.expires, now=self._now
        )

    def _is_suspect(self, row: Hint | Member) -> bool:
        return is_suspect(self._box, deliveries=row.deliveries, lost_leases=row.lost_leases)


class LinePrograms:
    """What a claim reads and writes, apart from taking."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def hints(self, box: Box, ask: Ask, limit: int, seen: Sequence[int]) -> Program[list[Hint]]:
        found = yield Statement(
            "hints",
            {
                "box": box.key,
                "limit": limit,
                "seen": self._engine.array(list(seen)),
                "topics": None if ask.topics is None else self._engine.array(sorted(ask.topics)),
            },
        )
        return [Hint(*row) for row in found]

    def read(self, box: Box, ask: Ask, groups: list[str], limit: int) -> Program[Read]:
        """The lines of these groups from their fronts, as far as `limit` messages need if all of them can be taken."""
        lines: dict[str, list[Member]] = {}
        if not groups:
            return Read(lines, None, frozenset())
        in_hand = self._engine.array(list(ask.in_hand))
        asked = {"box": box.key, "groups": self._engine.array(groups), "limit": limit, "in_hand": in_hand}
        # A topic costs a look at the message: it is not read where nobody asks for it.
        found = yield Statement("lines", {**asked, "topical": ask.topics is not None})
        for row in found:
            lines.setdefault(row[0], []).append(Member(*row))
        if len(found) != limit:  # all of them: where an engine has no limit for lines together, there may be more
            return Read(lines, None, frozenset())
        last: str = found[-1][0]
        unread = frozenset(groups[groups.index(last) + 1 :]) - lines.keys()
        return Read(lines, last if len(lines) > 1 else None, unread)

    def let_sleep(self, asleep: list[tuple[int, int]]) -> Program[None]:
        """Hints that must wait, each behind the first in its line."""
        if asleep:
            yield Many("sleep", ("id", "ahead"), sorted(asleep))
