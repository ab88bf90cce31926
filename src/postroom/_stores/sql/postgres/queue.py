"""The work queue on PostgreSQL: parts that lock rows, and that do with one statement what SQLite does with several."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from postroom._stores.sql.claims import Claims, Renewals
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.postgres.exchange import ExchangeStatement, SingleStatementExchange, UnorderedClaims
from postroom._stores.sql.postgres.fifo import PostgresFronts
from postroom._stores.sql.postgres.frontier import BEGINNING, Frontier, IndexPosition
from postroom._stores.sql.postgres.inserts import PostgresInserts
from postroom._stores.sql.postgres.locks import RowLocks
from postroom._stores.sql.postgres.notifications import PostgresNotifications
from postroom._stores.sql.postgres.records import PostgresRecords
from postroom._stores.sql.proofs import Batch, IndexedClaim, batches, proof
from postroom._stores.sql.queue import CommonParts, EngineParts, Queue
from postroom._stores.sql.settlements import Completed, Results, Settlements
from postroom._stores.sql.statements import Parameters, SqlProgram, Statement
from postroom.spi import Box

ROWS_PER_READ = 10_000
"""Rows that one statement of a reap reads. A million ready rows take about a second."""


class PostgresSuccesses:
    """Completes messages: one statement deletes queue rows and inserts into the ledger."""

    def __init__(self, engine: Engine, lines: Lines) -> None:
        self._engine = engine
        self._lines = lines

    def complete(self, box: Box, done: Sequence[IndexedClaim], results: Results) -> SqlProgram[Completed]:
        settled: list[int] = []
        steps: list[int] = []
        erase = box.retention.on_success == "delete"
        parts = list(batches(done))
        autocommit = len(parts) == 1 and not box.order.fifo and not erase
        for batch in parts:
            parameters = proof(self._engine, box, batch) | {"watched": False}
            statement = "complete"
            if results:
                statement = "complete_with_results"
                parameters |= self._results(batch, results)
            [(completed, groups)] = yield Statement(statement, parameters, autocommit=autocommit)
            if len(completed) < len(batch):
                watched, more = yield from self.complete_watched(box, batch, completed)
                steps += watched
                completed, groups = [*completed, *watched], [*groups, *more]
            if erase and completed:
                yield Statement("erase_content", {"ids": completed})
            yield from self._lines.promote(box, groups)
            settled += [batch[id_][0] for id_ in completed]
        return Completed(settled, steps)

    def _results(self, batch: Batch, results: Results) -> Parameters:
        """Returns payloads and formats in the order of the ids. None: no result."""
        found = [results.get(batch[id_][0]) for id_ in sorted(batch)]
        content = self._engine.content
        return {
            "payload": [None if result is None else content(result.payload) for result in found],
            "format": [None if result is None else result.format for result in found],
        }

    def complete_watched(
        self, box: Box, batch: Mapping[int, IndexedClaim], completed: Collection[int]
    ) -> SqlProgram[tuple[list[int], list[str]]]:
        """Completes the rest of a batch: claims that are lost, or steps that joins watch. Returns ids and groups.

        The caller wakes the continuations, all of a settlement with one statement: it locks them in id order.
        """
        done = set(completed)
        left = {id_: claim for id_, claim in batch.items() if id_ not in done}
        if not left or not box.can_have_joins:
            return [], []
        parameters = proof(self._engine, box, left) | {"watched": True}
        [(watched, groups)] = yield Statement("complete", parameters)
        return watched, groups


class PostgresExpiredLeases:
    """Finds expired leases: in FIFO groups by an index, others by reading all rows that are ready.

    No index has the leases outside of groups, so that a claim is a HOT update.
    """

    def find(self, box: Box, limit: int) -> SqlProgram[list[int]]:
        found = yield Statement("find_expired_leases_in_groups", {"box": box.key, "limit": limit})
        expired = [id_ for (id_,) in found]
        position: IndexPosition | None = BEGINNING
        while position is not None and len(expired) < limit:
            [(ids, available_at, last)] = yield Statement(
                "find_expired_leases",
                {
                    "box": box.key,
                    "limit": limit - len(expired),
                    "since": position.available_at,
                    "after": position.id,
                    "rows": ROWS_PER_READ,
                },
            )
            expired += ids
            position = None if last is None else IndexPosition(available_at, last)
        return expired


def build_queue(engine: Engine, notifications: PostgresNotifications, *, uses_frontier: bool) -> Queue:
    """Builds the work queue of PostgreSQL. `uses_frontier`: whether claims begin where the last one ended."""
    common = CommonParts(engine, notifications)
    successes = PostgresSuccesses(engine, common.lines)
    locks = RowLocks(common.finding)
    statement = ExchangeStatement(engine, locks, frontier=Frontier(enabled=uses_frontier))

    def exchange(settlements: Settlements, claims: Claims) -> SingleStatementExchange:
        return SingleStatementExchange(
            engine,
            statement,
            successes,
            lines=common.lines,
            steps=common.steps,
            settlements=settlements,
            claims=claims,
        )

    chosen = EngineParts(
        locks=locks,
        notifications=notifications,
        inserts=PostgresInserts(engine, notifications),
        records=PostgresRecords(engine),
        unordered=UnorderedClaims(statement),
        fronts=PostgresFronts(engine),
        locks_groups=True,
        successes=successes,
        expired_leases=PostgresExpiredLeases(),
        renewals=Renewals(engine, waiting="renew_and_wait"),
        exchange=exchange,
    )
    return Queue(engine, common, chosen)
