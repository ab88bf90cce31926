"""The verbs of `JoinStore` (docs/decisions/0015)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from postroom._kernel.joins import FollowUp, StepCounts, receipt_of_known
from postroom._stores.sql.arrivals import Arrivals
from postroom._stores.sql.attaching import Attaching
from postroom._stores.sql.endings import Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.finding import Finding
from postroom._stores.sql.join_rows import STEP_STATUSES, JoinRow, count_steps, end_joins
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.looks import LONGEST_SLEEP
from postroom._stores.sql.statements import Many, SqlProgram, Statement, current_time
from postroom.errors import JoinEnded, JoinNotFound, MessageNotFound
from postroom.spi import (
    Box,
    Draft,
    Ending,
    Filter,
    Join,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinStep,
    JoinWait,
    Receipt,
    ReceiptStatus,
    Step,
)


class Joins:
    """The verbs of `JoinStore`."""

    def __init__(
        self,
        engine: Engine,
        *,
        arrivals: Arrivals,
        attaching: Attaching,
        locks: Locks,
        endings: Endings,
        finding: Finding,
    ) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self._attaching = attaching
        self._locks = locks
        self._endings = endings
        self._finding = finding

    def start_join(self, box: Box, draft: JoinDraft) -> SqlProgram[None]:
        [(number,)] = yield Statement("reserve_ids", {"count": 1})
        yield Statement(
            "start_join",
            {
                "id": self._engine.token(draft.id),
                "number": number,
                "box": box.key,
                "tenant_id": draft.tenant_id,
                "expected_steps": draft.expected_steps,
                "metadata": draft.metadata,
                "deadline": self._engine.time(draft.deadline),
            },
        )

    def attach_steps(self, box: Box, join: UUID, steps: Sequence[Step]) -> SqlProgram[list[bool]]:
        yield from self._locks.writes()
        row = yield from self._attaching.lock(box, join)
        ids = yield from self._attaching.find_messages(box, steps)
        yield from self._attaching.check_circle(row, ids)
        return (yield from self._attaching.attach(box, row, ids))

    def report_step(self, box: Box, join: UUID, step: Step, failed: bool) -> SqlProgram[bool]:
        yield from self._locks.writes()
        row = yield from self._lock(box, join)
        [id_] = yield from self._attaching.find_messages(box, [step])
        known = yield from self._attaching.known_steps(row, [id_])
        if not known:
            raise MessageNotFound("this message is not a step of the join: attach it first")
        if row.status:
            return False
        outcome = {"join": row.id, "id": id_, "outcome": 2 if failed else 1}
        reported = yield Statement("report_step", outcome)
        if reported:
            yield from self._attaching.wake(box, row)
        return bool(reported)

    def put_wait(self, box: Box, draft: Draft, wait: JoinWait) -> SqlProgram[Receipt]:
        yield from self._locks.writes()
        row = yield from self._lock(box, wait.join)
        # Not by its key: the deduplication window may have passed.
        known = [] if row.wait_id is None else (yield from self._finding.find(box, Filter(ids=(row.wait_id,))))
        if known:
            return receipt_of_known(known[0])
        if row.status:
            raise JoinEnded  # it was cancelled, or its continuation was purged
        [receipt] = yield from self._arrivals.put(box, [draft], in_caller_tx=True)
        if not receipt.is_new:
            return receipt._replace(status=ReceiptStatus.CONFLICT)  # another message has the key
        yield Statement("begin_wait", {"id": receipt.id, "join": row.id})
        # A join without steps to wait for is looked at by the next claim.
        if (yield from self._attaching.watch(row)) if row.is_filled else row.deadline is None:
            until = (yield from current_time()) + self._engine.duration(LONGEST_SLEEP)
            yield Many("sleep_wait", ("id", "at"), [(receipt.id, until)])
        yield Statement(
            "set_wait",
            {
                "id": row.id,
                "wait_id": receipt.id,
                "fails": wait.fail_if_any_step_failed,
                **self._follow_up("on_complete", wait.on_complete),
                **self._follow_up("on_fail", wait.on_fail),
            },
        )
        return receipt

    def _follow_up(self, name: str, follow_up: FollowUp | None) -> dict[str, object]:
        topic, payload, format_ = follow_up or (None, None, None)
        content = None if payload is None else self._engine.content(payload)
        return {f"{name}_topic": topic, f"{name}_payload": content, f"{name}_format": format_}

    def seal_join(self, box: Box, join: UUID) -> SqlProgram[bool]:
        yield from self._locks.writes()
        row = yield from self._lock(box, join)
        if row.status or row.expected_steps is not None:
            raise JoinEnded("only an open join that has not ended can be sealed")
        if row.sealed:
            return False
        yield Statement("seal_join", {"id": row.id})
        yield from self._attaching.fill(box, row)
        return True

    def cancel_join(self, box: Box, join: UUID) -> SqlProgram[bool]:
        yield from self._locks.writes()
        row = yield from self._lock(box, join)
        if row.status:
            return False
        counts = (yield from count_steps(self._engine, [row.id])).get(row.id, StepCounts())
        yield end_joins([(row, JoinStatus.CANCELLED, counts)])
        if row.wait_id is not None:
            waiting = yield Statement("lock_wait", {"id": row.wait_id})
            erase = box.retention.on_success == "delete"
            yield from self._endings.finish(
                box, [id_ for (id_,) in waiting if id_ == row.wait_id], Ending.CANCELLED, erase=erase
            )
        return True

    def _lock(self, box: Box, join: UUID) -> SqlProgram[JoinRow]:
        row = yield from self._locks.join(box, join, "update")
        if row is None:
            raise JoinNotFound
        return row

    # -- reading -------------------------------------------------------------------------------------------------

    def find_joins(self, box: Box, which: JoinFilter) -> SqlProgram[list[Join]]:
        now = yield from current_time()
        found: list[Join] = []
        after, size = which.after, which.limit
        while len(found) < which.limit:
            page = yield from self._page(box, which, after, size)
            pending = [row.id for row in page if not row.status]
            counts = yield from count_steps(self._engine, pending)
            for row in page:
                join = row.to_join(self._engine, counts.get(row.id, StepCounts()), now)
                if which.statuses is None or join.status in which.statuses:
                    found.append(join)
            if len(page) < size:
                break
            after, size = page[-1].number, max(size, 100)
        return found[: which.limit]

    def _page(self, box: Box, which: JoinFilter, after: int, limit: int) -> SqlProgram[list[JoinRow]]:
        if which.ids is not None:
            rows = []
            for id_ in which.ids:
                rows += yield Statement("find_join", {"box": box.key, "id": self._engine.token(id_)})
            return sorted((JoinRow.of(row) for row in rows), key=lambda row: row.number)
        parameters = {"box": box.key, "tenant_id": which.tenant_id, "after": after, "limit": limit}
        return [JoinRow.of(row) for row in (yield Statement("find_joins", parameters))]

    def find_steps(self, box: Box, join: UUID, after: int = 0, limit: int = 100) -> SqlProgram[list[JoinStep]]:
        token = self._engine.token(join)
        if not (yield Statement("find_join", {"box": box.key, "id": token})):
            raise JoinNotFound
        found = yield Statement("find_steps", {"join": token, "after": after, "limit": limit})
        moment = self._engine.moment
        return [
            JoinStep(id_, source, message_id, STEP_STATUSES[status], moment(attached_at))
            for id_, source, message_id, status, attached_at in found
        ]
