"""Claiming on SQLite: rows are read, checked by the rules of the kernel, and then claimed, under the write lock."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._kernel.policy import cause_of_death, is_suspect
from postroom._stores.sql import rows
from postroom._stores.sql.claims import Taken, suspect_limits
from postroom._stores.sql.endings import DeadLetter
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.fronts import Picked
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.rows import Row
from postroom._stores.sql.statements import SqlProgram, Statement, StoredTime, current_time
from postroom.spi import Box, Claim, ClaimRequest, StoredMessage


class RowClaimer:
    """Claims rows of the view `postroom_work`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, request: ClaimRequest, found: Sequence[Row], now: StoredTime) -> SqlProgram[list[StoredMessage]]:
        """Claims all rows; returns their messages."""
        if not found:
            return []
        until = now + self._engine.duration(request.lease)
        ids = self._engine.array([row[rows.ID] for row in found])
        yield Statement("claim", {"ids": ids, "owner": self._engine.token(request.owner), "until": until})
        ends = self._engine.moment(until)
        return [
            rows.message_of(self._engine, row, Claim(row[rows.ID], request.owner, row[rows.FENCE] + 1, ends))
            for row in found
        ]


class UnorderedClaims:
    """Claims from boxes without order."""

    def __init__(self, engine: Engine, claimer: RowClaimer) -> None:
        self._engine = engine
        self._claimer = claimer

    def take(self, box: Box, request: ClaimRequest) -> SqlProgram[Taken]:
        now = yield from current_time()
        topics = None if request.topics is None else self._engine.array(sorted(request.topics))
        in_hand = self._engine.array(list(request.in_hand))
        found = yield Statement(
            "find_claimable" if topics is None else "find_claimable_on_topics",
            {
                "box": box.key,
                "limit": request.limit,
                "topics": topics,
                "in_hand": in_hand,
                **suspect_limits(box, request),
            },
        )
        fit: list[Row] = []
        suspects: list[Row] = []
        dead_letters: list[DeadLetter] = []
        waits: list[int] = []
        for row in found:
            if row[rows.WAITS_FOR] is not None:
                waits.append(row[rows.ID])
                continue
            deliveries, lost = row[rows.DELIVERIES], row[rows.LOST_LEASES]
            cause = cause_of_death(box, deliveries=deliveries, lost_leases=lost, expires=row[rows.EXPIRES], now=now)
            if cause is not None:
                dead_letters.append(DeadLetter(row[rows.ID], row[rows.LINE], cause))
            elif is_suspect(box, deliveries=deliveries, lost_leases=lost):
                suspects.append(row)
                if request.suspects and not fit:
                    break
            else:
                fit.append(row)
        takes_suspect = request.suspects and bool(suspects) and not fit
        taken = yield from self._claimer.claim(request, suspects[:1] if takes_suspect else fit, now)
        return Taken(taken, dead_letters, takes_suspect, bool(suspects) and not takes_suspect, waits)


class SqliteFronts:
    """Claims fronts of FIFO lines."""

    def __init__(self, engine: Engine, lines: Lines, claimer: RowClaimer) -> None:
        self._engine = engine
        self._lines = lines
        self._claimer = claimer

    def take(self, box: Box, request: ClaimRequest, picked: Picked, now: StoredTime) -> SqlProgram[list[StoredMessage]]:
        ids = [*picked.ungrouped, *(member.id for front in picked.fronts.values() for member in front)]
        if not ids:
            return []
        found = yield Statement("read_messages", {"ids": self._engine.array(ids)})
        yield from self._lines.end_batches(box, [(group, front[-1].id) for group, front in picked.fronts.items()])
        return (yield from self._claimer.claim(request, found, now))
