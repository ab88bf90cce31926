"""Claiming from FIFO boxes.

A claim is one transaction. It repeats four steps until it has enough messages or finds no more candidates:

1. `find_candidates` reads rows that can be claimed by their time. On PostgreSQL it locks their groups.
2. `read_lines` reads the lines of their groups, from the first member on.
3. `FrontPicker` picks the fronts of lines that no worker holds. The engine's `Fronts` claims them.
4. `sleep_behind_first` lets the candidates sleep that are not the first in their line, until the first leaves it.

The rules are in `_kernel/line.py`, what becomes of a candidate in `fronts.py`. The head of `postgres/statements.sql`
has the locks of each step, and why a sleeping row is always woken (decisions 0005, 0008 and 0010).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from postroom._stores.sql.claims import Taken
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.fronts import Candidate, FrontPicker, Member, Picked, ReadLines
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.statements import SqlProgram, Statement, StoredTime
from postroom.errors import refuse
from postroom.spi import Box, ClaimRequest, StoredMessage

MAX_CANDIDATES = 5000
"""Candidates that one claim reads at most: it must end, however many groups are blocked."""
_MOST_DOUBLED = 200
"""Each read of a claim reads twice as many candidates as the one before, up to this number."""


class Fronts(Protocol):
    """How an engine claims the rows that were picked."""

    def take(self, box: Box, request: ClaimRequest, picked: Picked, now: StoredTime) -> SqlProgram[list[StoredMessage]]:
        """Claims the picked rows. The earlier holder of a group loses all its leases there, not only those on rows
        that are claimed now."""


class FifoClaims:
    """Claims the fronts of lines, and messages without a group."""

    def __init__(self, engine: Engine, *, lines: Lines, locks: Locks, fronts: Fronts, locks_groups: bool) -> None:
        """`locks_groups`: whether `find_candidates` locks the groups of candidates."""
        self._engine = engine
        self._lines = lines
        self._locks = locks
        self._fronts = fronts
        self._locks_groups = locks_groups
        self._used: dict[str, int] = {}
        """How many candidates the last claim from each box could use."""

    def take(self, box: Box, request: ClaimRequest) -> SqlProgram[Taken]:
        taken: list[StoredMessage] = []
        held: dict[str, int] = {}
        read_before: list[int] = list(request.in_hand)
        to_read = self._first_read(box, request)
        while len(taken) < request.limit and len(read_before) < MAX_CANDIDATES + len(request.in_hand):
            missing = request.limit - len(taken)
            candidates = yield from self._find_candidates(box, request, to_read, read_before)
            if not candidates:
                break
            now = candidates[0].now
            waits = [each.id for each in candidates if each.waits]
            read_before += waits
            candidates = [each for each in candidates if not each.waits]
            groups = list(dict.fromkeys(each.group for each in candidates if each.group and each.group not in held))
            read = yield from self._read_lines(box, request, groups, missing)
            picker = FrontPicker(box, request, now, held, missing)
            picked = picker.pick(candidates, read)
            if picked.dead_letter is not None:
                dead_letters = yield from self._locks.undeliverable(box, [picked.dead_letter])
                return Taken(taken, dead_letters, is_suspect=False)
            messages = yield from self._fronts.take(box, request, picked, now)
            taken += messages
            if picker.took_suspect:
                return Taken(taken, [], is_suspect=True)
            request = request._replace(suspects=request.suspects and not taken)
            for message in messages:
                if message.group is not None:
                    held.setdefault(message.group, message.id)
            read_before += [each.id for each in candidates if each.id not in picked.unread]
            yield from self._lines.sleep(picked.behind)
            if waits:
                return Taken(taken, [], is_suspect=False, waits=waits)
            to_read = max(to_read, min(2 * to_read, _MOST_DOUBLED))
        if taken:
            self._used[box.key] = sum(message.group is None for message in taken) + len(held)
        return Taken(taken, [], is_suspect=False)

    def _first_read(self, box: Box, request: ClaimRequest) -> int:
        """Returns how many candidates to read first. A group that is locked and not used keeps other workers idle, so a
        claim that locks groups reads few more candidates than the last one could use."""
        most = min(request.limit, MAX_CANDIDATES)
        if not self._locks_groups:
            return most
        expected = self._used.get(box.key, request.limit // 10)
        return min(expected + expected // 4 + 1, most)

    def _find_candidates(
        self, box: Box, request: ClaimRequest, limit: int, read_before: Sequence[int]
    ) -> SqlProgram[list[Candidate]]:
        found = yield Statement(
            "find_candidates",
            {
                "box": box.key,
                "limit": limit,
                "read_before": self._engine.array(list(read_before)),
                "topics": None if request.topics is None else self._engine.array(sorted(request.topics)),
            },
        )
        if found and not Candidate(*found[0]).is_current:
            raise refuse("it claims from FIFO lines by an old snapshot: use isolation level READ COMMITTED")
        return [Candidate(*row) for row in found]

    def _read_lines(self, box: Box, request: ClaimRequest, groups: list[str], limit: int) -> SqlProgram[ReadLines]:
        """Reads the lines of these groups from the first member on: `limit` rows, enough if all can be claimed."""
        lines: dict[str, list[Member]] = {}
        if not groups:
            return ReadLines(lines, None, frozenset())
        found = yield Statement(
            "read_lines",
            {
                "box": box.key,
                "groups": self._engine.array(groups),
                "limit": limit,
                "in_hand": self._engine.array(list(request.in_hand)),
                # A topic costs a read of the message, so it is read only for a claim that names topics.
                "with_topics": request.topics is not None,
            },
        )
        for row in found:
            lines.setdefault(row[0], []).append(Member(*row))
        if len(found) != limit:  # fewer: all was read. More: the engine applies the limit to each line.
            return ReadLines(lines, None, frozenset())
        last: str = found[-1][0]
        unread = frozenset(groups[groups.index(last) + 1 :]) - lines.keys()
        return ReadLines(lines, last if len(lines) > 1 else None, unread)
