"""Claiming fronts of FIFO lines on PostgreSQL. The comments in `statements.sql` describe the locks."""

from __future__ import annotations

from postroom._stores.sql import rows
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.fronts import Picked
from postroom._stores.sql.postgres.arrays import NULL, array_text
from postroom._stores.sql.statements import SqlProgram, Statement, StoredTime
from postroom.spi import Box, ClaimRequest, StoredMessage


class PostgresFronts:
    """Claims fronts with one statement."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, box: Box, request: ClaimRequest, picked: Picked, now: StoredTime) -> SqlProgram[list[StoredMessage]]:
        wanted: list[tuple[int, int | str]] = [(id_, NULL) for id_ in picked.ungrouped]
        for front in picked.fronts.values():
            wanted += [(member.id, number) for number, member in enumerate(front, 1)]
        if not wanted:
            return []
        until = now + request.lease
        # The statement needs ids in ascending order, and returns messages by their positions.
        ids, numbers, positions = zip(*sorted((*each, position) for position, each in enumerate(wanted)), strict=True)
        parameters = {
            "box": box.key,
            "ids": array_text(ids),
            "numbers": array_text(numbers),
            "positions": array_text(positions),
            "groups_with_claims": [group for group, front in picked.fronts.items() if front[0].has_claims],
            "owner": request.owner,
            "until": until,
        }
        found = yield Statement("claim_fronts", parameters)
        return rows.claimed(self._engine, found, request.owner, until)
