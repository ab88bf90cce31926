"""Attaching: messages become steps of a join.

A transaction that attaches locks the join row first. A join that expects a number of steps is locked for one
transaction at a time, since its steps are counted. An open join takes a share lock, so producers with long transactions
do not wait for each other. Both exclude a look, which must see all steps or none of a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from postroom._kernel.joins import WAITS_FOR_ITSELF
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.join_rows import JoinRow
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.statements import Many, SqlProgram, Statement, current_time
from postroom._stores.sql.steps import Steps
from postroom.errors import ArgumentValueError, JoinEnded, JoinFull, JoinNotFound, MessageNotFound
from postroom.spi import Box, Draft, Key, Receipt, Step


class Attaching:
    """Attaches messages to joins."""

    def __init__(self, engine: Engine, locks: Locks, notifications: Notifications, steps: Steps) -> None:
        self._engine = engine
        self._steps = steps
        self._locks = locks
        self._notifications = notifications

    def lock(self, box: Box, join: UUID) -> SqlProgram[JoinRow]:
        """Locks a join to which messages are attached, and returns it."""
        row = yield from self._locks.join(box, join, "attach")
        if row is None:
            raise JoinNotFound
        return row

    def check(self, box: Box, drafts: Sequence[Draft]) -> SqlProgram[dict[UUID, JoinRow]]:
        """Locks the joins of drafts before the drafts are put. Raises if one of them cannot take its steps."""
        keys: dict[UUID, dict[Key, None]] = {}
        for draft in drafts:
            if draft.join is not None:
                keys.setdefault(draft.join, {})[draft.key] = None
        if not keys:
            return {}
        yield from self._locks.writes()
        now, window = (yield from current_time()), box.retention.dedup_window
        since = None if window is None else now - self._engine.duration(window)
        rows: dict[UUID, JoinRow] = {}
        for join in sorted(keys):
            rows[join] = yield from self.lock(box, join)
            sources, message_ids = (self._engine.array(list(each)) for each in zip(*keys[join], strict=True))
            names = {"box": box.key, "sources": sources, "message_ids": message_ids}
            known = yield Statement("find_known_puts", {**names, "join": rows[join].id, "since": since})
            _check_room(rows[join], len(keys[join]) - sum(is_step for _, is_step in known))
            yield from self.check_circle(rows[join], [id_ for id_, is_step in known if not is_step])
        return rows

    def attach_put(
        self, box: Box, rows: dict[UUID, JoinRow], drafts: Sequence[Draft], receipts: Sequence[Receipt]
    ) -> SqlProgram[None]:
        """Attaches messages that were put. `rows`: the result of `check`."""
        for join, row in rows.items():
            ids = [receipt.id for draft, receipt in zip(drafts, receipts, strict=True) if draft.join == join]
            yield from self.attach(box, row, ids)

    def find_messages(self, box: Box, steps: Sequence[Step]) -> SqlProgram[list[int]]:
        """Returns the ids of messages. They cannot be purged before the transaction ends."""
        ids: list[int] = []
        for step in steps:
            if isinstance(step, Key):
                names = {"box": box.key, "source": step.source, "message_id": step.message_id}
                found = yield Statement("lock_message_named", names)
            else:
                found = yield Statement("lock_message", {"box": box.key, "id": step})
            if not found:
                raise MessageNotFound
            ids.append(found[0][0])
        return ids

    def check_circle(self, join: JoinRow, ids: Sequence[int]) -> SqlProgram[None]:
        """Raises ArgumentValueError if a join that waits for one of these messages would wait for itself.

        The message is then its continuation, or the continuation of a join that waits for it.
        """
        if ids and join.wait_id is not None:
            found = yield Statement("find_circle", {"join": join.id, "ids": self._engine.array(sorted(ids))})
            if found:
                raise ArgumentValueError(WAITS_FOR_ITSELF)

    def known_steps(self, join: JoinRow, ids: Sequence[int]) -> SqlProgram[set[int]]:
        """Returns which of these messages are steps of the join."""
        found = yield Statement("find_known_steps", {"join": join.id, "ids": self._engine.array(sorted(set(ids)))})
        return {id_ for (id_,) in found}

    def attach(self, box: Box, join: JoinRow, ids: Sequence[int]) -> SqlProgram[list[bool]]:
        """Makes messages steps of a join that is locked. Returns True for each that was not a step before."""
        known = yield from self.known_steps(join, ids)
        new = sorted(set(ids) - known)
        _check_room(join, len(new))
        if new:
            now = yield from current_time()
            yield Many("insert_step", ("join_id", "message_id", "attached_at"), [(join.id, id_, now) for id_ in new])
            if join.expected_steps is not None:
                yield Statement("add_steps", {"id": join.id, "count": len(new)})
                if join.attached_steps + len(new) == join.expected_steps:
                    yield from self.fill(box, join)
        attached = []
        for id_ in ids:
            attached.append(id_ not in known)
            known.add(id_)
        return attached

    def fill(self, box: Box, join: JoinRow) -> SqlProgram[None]:
        """Watches a step of a join that has all its steps now, so that its continuation can sleep.

        If no step is pending, the next claim looks at the join.
        """
        if join.wait_id is not None and not (yield from self.watch(join)):
            yield from self.wake(box, join)

    def watch(self, join: JoinRow) -> SqlProgram[bool]:
        """Watches a step of a join that is locked. Returns False if a claim must look at the join.

        No step is pending then, or those that are have been locked, or the worker must learn of the deadline.
        """
        return join.deadline is None and not (yield from self._steps.watch([join.id]))

    def wake(self, box: Box, join: JoinRow) -> SqlProgram[None]:
        """Lets the next claim look at a join."""
        if join.wait_id is not None:
            yield Statement("wake_wait", {"id": join.wait_id})
            yield from self._notifications.send(box)


def _check_room(join: JoinRow, new: int) -> None:
    if new and (join.status or join.sealed):
        raise JoinEnded
    if join.expected_steps is not None and join.attached_steps + new > join.expected_steps:
        raise JoinFull
