"""Records of guards on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._stores.sql import rows
from postroom._stores.sql.begins import KnownRecord
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.postgres.arrays import text_array
from postroom._stores.sql.postgres.inserts import shared
from postroom._stores.sql.statements import SqlProgram, Statement
from postroom.spi import NO_END, Begin, Box, Claim, Key


class PostgresRecords:
    """Inserts records with one statement, and locks the queue rows of known ones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def insert(self, box: Box, begins: Sequence[Begin], *, autocommit: bool) -> SqlProgram[list[Claim | None]]:
        drafts = [begin.draft for begin in begins]
        parameters = {
            "box": box.key,
            "source": shared([draft.source for draft in drafts]),
            "message_id": text_array([draft.message_id for draft in drafts]),
            "topic": shared([draft.topic for draft in drafts]),
            "hash": [draft.hash for draft in drafts],
            "hash_algorithm": [None if draft.hash is None else draft.hash_algorithm for draft in drafts],
            "owner": [begin.owner for begin in begins],
            "lease": [begin.lease for begin in begins],
            "no_end": NO_END,
        }
        found = yield Statement("begin", parameters, autocommit=autocommit)
        moment = self._engine.moment
        return [
            Claim(id_, begin.owner, 1, moment(until)) if is_new else None
            for begin, (id_, until, is_new) in zip(begins, found, strict=True)
        ]

    def lock(self, box: Box, keys: Sequence[Key]) -> SqlProgram[list[KnownRecord]]:
        sources, message_ids = [key.source for key in keys], [key.message_id for key in keys]
        names = {"box": box.key, "source": sources, "message_id": text_array(message_ids)}
        found = yield Statement("lock_records", names)
        return [KnownRecord.of(self._engine, row) for row in found if row[rows.STATE] is not None]
