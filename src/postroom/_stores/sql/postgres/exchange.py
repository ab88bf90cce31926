"""The statement `exchange`: it settles successes and claims from a box without order, in one round trip and one
commit."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from postroom._stores.sql import rows
from postroom._stores.sql.claims import Claims, Taken, suspect_limits
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.exchange import Exchanged, SettleThenClaim
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.postgres.frontier import BEGINNING, Frontier, IndexPosition
from postroom._stores.sql.postgres.locks import RowLocks
from postroom._stores.sql.proofs import IndexedClaim, batches, proof
from postroom._stores.sql.settlements import Settlements
from postroom._stores.sql.statements import SqlProgram, Statement
from postroom._stores.sql.steps import Steps
from postroom.spi import Box, Claim, ClaimRequest, Settlement, StoredMessage


class Report(NamedTuple):
    """The column `report` of the first row of the statement. The other rows are claimed messages."""

    read_to: str | None
    """`available_at` of the last row that was read."""
    lease_until: str
    suspects: int
    """The number of suspects among the rows that were read."""
    took_suspect: bool
    """Whether the one claimed message is a suspect."""
    settled: list[int]
    """Ids of the messages that are done now."""
    undeliverable: list[int]
    """Ids of rows that were read and must not be claimed again."""
    waits: list[int]
    """Ids of continuations that were read."""
    groups: list[str]
    """The groups of settled messages: none, unless the box was FIFO before."""


class ExchangeResult(NamedTuple):
    """What the statement has done."""

    report: Report
    messages: list[StoredMessage]
    began_behind: IndexPosition


class ExchangeStatement:
    """Runs the statement `exchange`."""

    def __init__(self, engine: Engine, locks: RowLocks, *, frontier: Frontier) -> None:
        self._engine = engine
        self._locks = locks
        self._frontier = frontier

    def run(
        self, box: Box, request: ClaimRequest, settles: Mapping[str, object] | None = None
    ) -> SqlProgram[ExchangeResult]:
        """Settles and claims. `settles`: the proof of successes; without it, nothing is settled."""
        since = self._frontier.since(box.key)
        parameters = {
            "box": box.key,
            "owner": request.owner,
            "lease": request.lease,
            "limit": request.limit,
            "topics": None if request.topics is None else sorted(request.topics),
            "in_hand": list(request.in_hand),
            **suspect_limits(box, request),
            "since": since.available_at,
            "after": since.id,
            **(self._engine.claims([]) if settles is None else settles),
        }
        first, *claimed = yield Statement("exchange", parameters, autocommit=True)
        report = Report(**json.loads(first[-1]))
        last = None
        if report.read_to is not None and len(claimed) == request.limit:
            last = IndexPosition(datetime.fromisoformat(report.read_to), claimed[-1][0])
        self._frontier.advance(box.key, since, last)
        until = datetime.fromisoformat(report.lease_until)
        return ExchangeResult(report, rows.claimed(self._engine, claimed, request.owner, until), since)

    def taken(self, box: Box, result: ExchangeResult) -> SqlProgram[Taken]:
        """Returns the claimed messages, and locks those that must be made dead."""
        report, took_suspect = result.report, result.report.took_suspect
        dead_letters = []
        if report.undeliverable:
            dead_letters = yield from self._locks.undeliverable_ids(box, report.undeliverable)
        skipped_suspects = report.suspects > 0 and not took_suspect
        return Taken(result.messages, dead_letters, took_suspect, skipped_suspects, report.waits)


class UnorderedClaims:
    """Claims from boxes without order: an exchange that settles nothing."""

    def __init__(self, statement: ExchangeStatement) -> None:
        self._statement = statement

    def take(self, box: Box, request: ClaimRequest) -> SqlProgram[Taken]:
        result = yield from self._statement.run(box, request)
        taken = yield from self._statement.taken(box, result)
        left = taken.rest_of(request)
        is_short = left.limit and not taken.is_interrupted
        if is_short and result.began_behind != BEGINNING:
            rest = yield from self.take(box, left)
            return rest._replace(messages=taken.messages + rest.messages)
        return taken


class WatchedSuccesses(Protocol):
    """Completes steps of joins, which the statement leaves out if a join watches them."""

    def complete_watched(
        self, box: Box, batch: Mapping[int, IndexedClaim], completed: Collection[int]
    ) -> SqlProgram[tuple[list[int], list[str]]]:
        """Completes the messages of `batch` that are not in `completed`. Returns their ids and groups."""


class SingleStatementExchange:
    """An exchange in one statement, if it only settles successes of the claiming worker; otherwise in several."""

    def __init__(
        self,
        engine: Engine,
        statement: ExchangeStatement,
        successes: WatchedSuccesses,
        *,
        lines: Lines,
        steps: Steps,
        settlements: Settlements,
        claims: Claims,
    ) -> None:
        self._engine = engine
        self._statement = statement
        self._lines = lines
        self._claims = claims
        self._successes = successes
        self._steps = steps
        self._in_steps = SettleThenClaim(settlements, claims)

    def exchange(self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest) -> SqlProgram[Exchanged]:
        successes = _successes_of(box, settlements, request)
        if successes is None:
            return (yield from self._in_steps.exchange(box, settlements, request))
        settles = proof(self._engine, box, successes)
        result = yield from self._statement.run(box, request, settles)
        settled = [False] * len(settlements)
        for id_ in result.report.settled:
            settled[successes[id_][0]] = True
        groups = result.report.groups
        yield from self._lines.promote(box, groups)
        woken: list[int] = []
        if len(result.report.settled) < len(settlements):
            done = result.report.settled
            watched, _ = yield from self._successes.complete_watched(box, successes, done)
            for id_ in watched:
                settled[successes[id_][0]] = True
            woken = yield from self._steps.ended(box, watched)
        taken = yield from self._statement.taken(box, result)
        taken = taken._replace(waits=list(dict.fromkeys([*taken.waits, *woken])))
        messages, left = taken.messages, taken.rest_of(request)
        if taken.is_interrupted:
            left = yield from self._claims.settle_interruption(box, request, taken)
        goes_on = result.began_behind != BEGINNING or taken.is_interrupted or groups
        if left.limit and goes_on:
            messages += yield from self._claims.claim(box, left)
        return settled, messages


def _successes_of(box: Box, settlements: Sequence[Settlement], request: ClaimRequest) -> dict[int, IndexedClaim] | None:
    """Returns the claims by id if the statement can settle all of them, else None."""
    if box.order.fifo or box.retention.on_success != "keep" or box.delivery.on_stale_ack != "done":
        return None
    claims: list[IndexedClaim] = []
    owner = request.owner
    for index, (target, verdict, _, _, _, result) in enumerate(settlements):
        if verdict != "done" or result is not None or not isinstance(target, Claim):
            return None
        if target.owner is not owner and target.owner != owner:
            return None
        claims.append((index, target))
    parts = list(batches(claims))
    return parts[0] if len(parts) == 1 else None
