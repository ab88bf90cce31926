"""Records of guards on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence

from postroom._stores.sql.begins import KnownRecord
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.inserts import NewRows
from postroom._stores.sql.statements import Many, SqlProgram, Statement, current_time
from postroom.spi import Begin, Box, Claim, Key


class SqliteRecords:
    """Inserts and reads records under the write lock."""

    def __init__(self, engine: Engine, new_rows: NewRows) -> None:
        self._engine = engine
        self._new_rows = new_rows

    def insert(self, box: Box, begins: Sequence[Begin], *, autocommit: bool) -> SqlProgram[list[Claim | None]]:
        [(last,)] = yield Statement("reserve_ids", {"count": len(begins)})
        now = yield from current_time()
        moment, first = self._engine.moment(now), last - len(begins) + 1
        new = yield from self._new_rows.insert_messages(box, first, [begin.draft for begin in begins], now)
        claims = [
            Claim(id_, begin.owner, 1, begin.lease_end(moment)) if id_ in new else None
            for id_, begin in enumerate(begins, first)
        ]
        token, time = self._engine.token, self._engine.time
        entered = [(claim.id, box.key, time(claim.until), token(claim.owner)) for claim in claims if claim is not None]
        if entered:
            yield Many("enqueue_claimed", ("id", "box", "until", "owner"), entered)
        return claims

    def lock(self, box: Box, keys: Sequence[Key]) -> SqlProgram[list[KnownRecord]]:
        found = yield Statement("lock_records", {"box": box.key, "keys": json.dumps(keys)})
        return [KnownRecord.of(self._engine, row) for row in found]
