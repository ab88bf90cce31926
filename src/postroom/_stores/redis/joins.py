"""The verbs of joins, as programs that run scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from postroom._kernel.clock import from_microseconds
from postroom._kernel.joins import WAITS_FOR_ITSELF, JoinId
from postroom._kernel.program import Program, verb
from postroom._stores.redis import codec
from postroom._stores.redis.redis_py import Reply
from postroom._stores.redis.runner import ScriptRunner
from postroom._stores.redis.scripts import CIRCLE, JOIN_ENDED, JOIN_FULL, NO_JOIN, NO_MESSAGE, NO_STEP
from postroom.errors import ArgumentValueError, JoinEnded, JoinFull, JoinNotFound, MessageNotFound
from postroom.spi import (
    Box,
    Draft,
    Join,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinStep,
    JoinWait,
    Key,
    Receipt,
    Step,
    StepStatus,
    Tx,
)

MAX_FOUND = 1000
"""Joins or steps that one script returns."""
MAX_READS = 2000
"""Joins that one script reads to find those that match a filter."""


class JoinVerbs(ScriptRunner):
    """The verbs of joins, for both modes. Only scripts change joins: one script is one verb."""

    @verb
    def start_join(self, box: Box, draft: JoinDraft, *, tx: Tx = None) -> Program[None]:
        arguments = codec.present(
            {
                "join": draft.id.hex,
                "tenant_id": draft.tenant_id,
                "expected": draft.expected_steps,
                "metadata": draft.metadata,
                "deadline": codec.time_or_never(draft.deadline),
            }
        )
        yield from self._run_with_ids("start_join", box, arguments)

    @verb
    def attach_steps(self, box: Box, join: UUID, steps: Sequence[Step], *, tx: Tx = None) -> Program[list[bool]]:
        arguments = {"join": join.hex, "steps": [_name(step) for step in steps]}
        return codec.kept(checked((yield from self._run("attach_steps", box, arguments))))

    @verb
    def report_step(self, box: Box, join: UUID, step: Step, *, failed: bool, tx: Tx = None) -> Program[bool]:
        arguments = {"join": join.hex, "step": _name(step), "failed": failed}
        return bool(checked((yield from self._run("report_step", box, arguments))))

    @verb
    def put_wait(self, box: Box, draft: Draft, wait: JoinWait, *, tx: Tx = None) -> Program[Receipt]:
        arguments, contents = codec.draft_arguments([draft], fifo=False)
        arguments["wait"] = {"join": wait.join.hex, "fails": wait.fail_if_any_step_failed}
        for name, follow_up in (("on_complete", wait.on_complete), ("on_fail", wait.on_fail)):
            if follow_up is not None:
                # Packed here: a script does not know whether a string is text or bytes.
                payload = codec.encode(follow_up.payload)
                contents += payload
                arguments["wait"][name] = {
                    "topic": follow_up.topic,
                    "format": follow_up.format,
                    "length": len(payload),
                }
        reply = checked((yield from self._run_with_ids("put", box, arguments, contents)))
        return codec.receipts(reply, [draft])[0]

    @verb
    def seal_join(self, box: Box, join: UUID, *, tx: Tx = None) -> Program[bool]:
        reply = yield from self._run("seal_join", box, {"join": join.hex})
        if reply == JOIN_ENDED:
            raise JoinEnded("only an open join that has not ended can be sealed")
        return bool(checked(reply))

    @verb
    def cancel_join(self, box: Box, join: UUID, *, tx: Tx = None) -> Program[bool]:
        return bool(checked((yield from self._run("cancel_join", box, {"join": join.hex}))))

    @verb
    def find_joins(self, box: Box, which: JoinFilter) -> Program[list[Join]]:
        found: list[Join] = []
        after = which.after
        while len(found) < which.limit:
            arguments = {
                "after": after,
                "limit": min(which.limit - len(found), MAX_FOUND),
                "reads": MAX_READS,
            } | _filter_arguments(which)
            rows, next_after = yield from self._run("find_joins", box, arguments, wait="nothing")
            found += map(_to_join, rows[::2], rows[1::2])
            if not next_after:
                break
            after = int(next_after)
        return found

    @verb
    def find_steps(self, box: Box, join: UUID, *, after: int = 0, limit: int = 100) -> Program[list[JoinStep]]:
        found: list[JoinStep] = []
        while len(found) < limit:
            size = min(limit - len(found), MAX_FOUND)
            arguments = {"join": join.hex, "after": codec.id_text(after), "limit": size}
            rows = codec.decode(checked((yield from self._run("find_steps", box, arguments, wait="nothing"))))
            found += map(_to_step, rows)
            if len(rows) < size:
                break
            after = found[-1].id
        return found


_ERRORS: dict[bytes, Callable[[], Exception]] = {
    NO_JOIN: JoinNotFound,
    NO_MESSAGE: MessageNotFound,
    NO_STEP: lambda: MessageNotFound("this message is not a step of the join: attach it first"),
    JOIN_ENDED: JoinEnded,
    JOIN_FULL: JoinFull,
    CIRCLE: lambda: ArgumentValueError(WAITS_FOR_ITSELF),
}


def checked(reply: Reply) -> Reply:
    """Returns the reply of a script. Raises an error if the script has refused to write."""
    error = _ERRORS.get(reply) if isinstance(reply, bytes) else None
    if error is not None:
        raise error()
    return reply


def _name(step: Step) -> str | Key:
    return step if isinstance(step, Key) else codec.id_text(step)


def _filter_arguments(which: JoinFilter) -> codec.Arguments:
    return codec.present(
        {
            "ids": None if which.ids is None else sorted({id_.hex for id_ in which.ids}),
            "tenant_id": which.tenant_id,
            "statuses": None if which.statuses is None else dict.fromkeys(which.statuses, True),
        }
    )


def _to_join(id_: bytes, row: bytes) -> Join:
    tenant_id, status, expected, attached, completed, failed, sealed, metadata, deadline, created, updated, number = (
        codec.decode(row)
    )
    return Join(
        JoinId(hex=id_.decode()),
        tenant_id,
        JoinStatus(status),
        expected or None,
        attached,
        completed,
        failed,
        sealed,
        None if metadata is False else metadata,
        from_microseconds(deadline) if deadline else None,
        from_microseconds(created),
        from_microseconds(updated),
        number,
    )


def _to_step(row: Sequence[Reply]) -> JoinStep:
    id_, source, message_id, status, attached_at = row
    is_purged = message_id is False
    return JoinStep(
        id_,
        None if is_purged else source,
        None if is_purged else message_id,
        StepStatus(status),
        from_microseconds(attached_at),
    )
