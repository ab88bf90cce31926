"""The work queue on SQLite: parts that rely on its write lock."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._stores.sql.claims import Renewals
from postroom._stores.sql.endings import Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.notifications import NoNotifications
from postroom._stores.sql.proofs import IndexedClaim, batches, proof
from postroom._stores.sql.queue import CommonParts, EngineParts, Queue
from postroom._stores.sql.settlements import Completed, Results
from postroom._stores.sql.sqlite.claims import RowClaimer, SqliteFronts, UnorderedClaims
from postroom._stores.sql.sqlite.inserts import SqliteInserts
from postroom._stores.sql.sqlite.locks import WriteLock
from postroom._stores.sql.sqlite.records import SqliteRecords
from postroom._stores.sql.statements import Many, SqlProgram, Statement
from postroom.spi import Box


class SqliteSuccesses:
    """Completes messages. SQLite cannot insert and delete in one statement."""

    def __init__(self, engine: Engine, endings: Endings) -> None:
        self._engine = engine
        self._endings = endings

    def complete(self, box: Box, done: Sequence[IndexedClaim], results: Results) -> SqlProgram[Completed]:
        settled: list[int] = []
        steps: list[int] = []
        for batch in batches(done):
            completed = yield Statement("complete", proof(self._engine, box, batch))
            ids = [id_ for (id_,) in completed]
            steps += yield from self._endings.dequeue(box, ids, erase=box.retention.on_success == "delete")
            content = self._engine.content
            found = [(id_, results.get(batch[id_][0])) for id_ in ids]
            kept = [(id_, content(result.payload), result.format) for id_, result in found if result is not None]
            if kept:
                yield Many("set_result", ("id", "payload", "format"), kept)
            settled += [batch[id_][0] for id_ in ids]
        return Completed(settled, steps)


class SqliteExpiredLeases:
    """Finds expired leases by the ready index: `available_at` of a claimed row is the end of its lease."""

    def find(self, box: Box, limit: int) -> SqlProgram[list[int]]:
        found = yield Statement("find_expired_leases", {"box": box.key, "limit": limit})
        return [id_ for (id_,) in found]


def build_queue(engine: Engine) -> Queue:
    """Builds the work queue of SQLite."""
    notifications = NoNotifications()
    common = CommonParts(engine, notifications)
    claimer = RowClaimer(engine)
    chosen = EngineParts(
        locks=WriteLock(common.finding),
        notifications=notifications,
        inserts=SqliteInserts(engine, common.new_rows),
        records=SqliteRecords(engine, common.new_rows),
        unordered=UnorderedClaims(engine, claimer),
        fronts=SqliteFronts(engine, common.lines, claimer),
        locks_groups=False,
        successes=SqliteSuccesses(engine, common.endings),
        expired_leases=SqliteExpiredLeases(),
        renewals=Renewals(engine),
    )
    return Queue(engine, common, chosen)
