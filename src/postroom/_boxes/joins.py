"""The verbs of joins: one continuation after several messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from postroom._boxes import check, selection
from postroom._boxes.base import BoxBase
from postroom._boxes.selection import Named
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._kernel.joins import (
    WAIT_TOPIC,
    FollowUp,
    Join,
    JoinDraft,
    JoinFilter,
    JoinId,
    JoinStatus,
    JoinStep,
    JoinWait,
)
from postroom._kernel.message import Draft, Receipt, ReceiptStatus
from postroom._kernel.program import Program, call, verb
from postroom.errors import ArgumentTypeError, ArgumentValueError, DuplicateMessage, FeatureMissing, JoinNotFound
from postroom.spi import JoinStore, Tx

MAX_STEPS = 2**31 - 1
MAX_METADATA = 65_536

TenantId = str | int | UUID


class JoinVerbs(BoxBase):
    """Verbs for joins."""

    @verb
    def start_join(
        self,
        tenant_id: TenantId,
        expected_steps: int | None = None,
        metadata: str | None = None,
        *,
        deadline: datetime | None = None,
        tx: Tx = NOT_GIVEN,
    ) -> Program[JoinId]:
        """Starts a join: attach messages to it as steps, then say with `enqueue_join_wait` what follows them.

        Args:
            tenant_id: the tenant to which the join belongs: a str of up to 255 characters, an int or a UUID.
            expected_steps: how many messages will be attached. None: an open join; call `seal_join` after the last one.
            metadata: a text to keep with the join, up to 65,536 characters.
            deadline: the join has failed after this time, unless all its steps have ended. None: no deadline.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            The id of the join.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            FeatureMissing: the store has no joins.
        """
        store = self._joins()
        expected = None if expected_steps is None else check.count("expected_steps", expected_steps, most=MAX_STEPS)
        draft = JoinDraft(
            JoinId.new(), _tenant(tenant_id), expected, _metadata(metadata), check.optional_moment("deadline", deadline)
        )
        yield call(store.start_join, self._box, draft, tx=resolve(tx, self._store))
        return JoinId(int=draft.id.int)

    @verb
    def attach_message_to_join(self, join: UUID, message: Named, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Makes a message a step of a join. It counts at once if it has ended already.

        `enqueue(..., join=join)` does the same in one step.

        Args:
            join: the id of the join.
            message: a message, its receipt, its key, its id or its message id.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if it was not a step before. A second call changes nothing.

        Raises:
            ArgumentTypeError: before any I/O.
            ArgumentValueError: before any I/O; or the message is the continuation of the join.
            JoinNotFound, MessageNotFound: this box has no such join or message.
            JoinEnded: the join has ended, or is sealed.
            JoinFull: the join has all the steps that it expects.
        """
        step = selection.step(self._box, message)
        store, transaction = self._joins(), resolve(tx, self._store)
        attached: list[bool] = yield call(store.attach_steps, self._box, _join(join), [step], tx=transaction)
        return attached[0]

    @verb
    def report_step_completed(self, join: UUID, message: Named, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Ends a step of a join as completed, before its message has ended.

        Rarely needed: a step ends with its message. Whichever comes first counts.

        Args:
            join: the id of the join.
            message: a message that is a step of it, its receipt, its key, its id or its message id.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the step was pending. A second call changes nothing.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            JoinNotFound: this box has no such join.
            MessageNotFound: the message is not a step of the join.
        """
        return (yield from self._report(join, message, tx, failed=False))

    @verb
    def report_step_failed(self, join: UUID, message: Named, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Ends a step of a join as failed, before its message has ended.

        Rarely needed: a step ends with its message. Whichever comes first counts.

        Args:
            join: the id of the join.
            message: a message that is a step of it, its receipt, its key, its id or its message id.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the step was pending. A second call changes nothing.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            JoinNotFound: this box has no such join.
            MessageNotFound: the message is not a step of the join.
        """
        return (yield from self._report(join, message, tx, failed=True))

    def _report(self, join: UUID, message: Named, tx: Tx, *, failed: bool) -> Program[bool]:
        step = selection.step(self._box, message)
        store, transaction = self._joins(), resolve(tx, self._store)
        reported: bool = yield call(store.report_step, self._box, _join(join), step, failed=failed, tx=transaction)
        return reported

    @verb
    def enqueue_join_wait(
        self,
        join: UUID,
        fail_if_any_step_failed: bool = True,
        on_complete_topic: str | None = None,
        on_complete_payload: Any = None,
        on_fail_topic: str | None = None,
        on_fail_payload: Any = None,
        *,
        correlation_id: str | None = None,
        tx: Tx = NOT_GIVEN,
    ) -> Program[Receipt]:
        """Stores what follows a join: its continuation, a message that can be claimed when all steps have ended.

        The continuation is sent exactly once. It can be a step of another join: attach its receipt.

        Args:
            join: the id of the join.
            fail_if_any_step_failed: the join has failed if one of its steps has. False: it completes all the same.
            on_complete_topic: the topic of the continuation if the join has completed. None: nothing is sent.
            on_complete_payload: its payload; as in `enqueue`.
            on_fail_topic: the topic of the continuation if the join has failed. None: the continuation becomes a dead
                letter, which can be replayed after its failed steps.
            on_fail_payload: its payload; as in `enqueue`.
            correlation_id: an id that relates the continuation to other messages.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            The receipt of the continuation. A second call for the same join changes nothing: `duplicate` or `done`.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            JoinNotFound: this box has no such join.
            JoinEnded: the join was cancelled.
            DuplicateMessage: another message of the box has the id of the join as its message id.
        """
        id_ = _join(join)
        wait = JoinWait(
            id_,
            check.flag("fail_if_any_step_failed", fail_if_any_step_failed),
            _follow_up("on_complete", on_complete_topic, on_complete_payload),
            _follow_up("on_fail", on_fail_topic, on_fail_payload),
        )
        draft = Draft(
            self._box.name,
            str(id_),
            WAIT_TOPIC,
            correlation_id=check.optional_text("correlation_id", correlation_id),
            on_duplicate="reject",
        )
        store, transaction = self._joins(), resolve(tx, self._store)
        receipt: Receipt = yield call(store.put_wait, self._box, draft, wait, tx=transaction)
        if receipt.status in {ReceiptStatus.CONFLICT, ReceiptStatus.REJECTED}:
            raise DuplicateMessage(
                f"another message has the id of this join, {id_}, so its continuation cannot be stored", [receipt]
            )
        return receipt

    @verb
    def seal_join(self, join: UUID, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Says that all steps of an open join are attached. An open join without steps is then complete.

        Args:
            join: the id of a join that was started without `expected_steps`.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if it was not sealed before.

        Raises:
            ArgumentTypeError: before any I/O.
            JoinNotFound: this box has no such join.
            JoinEnded: the join has ended, or has `expected_steps`.
        """
        store, transaction = self._joins(), resolve(tx, self._store)
        sealed: bool = yield call(store.seal_join, self._box, _join(join), tx=transaction)
        return sealed

    @verb
    def cancel_join(self, join: UUID, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Cancels a join: its continuation is not sent. Messages that are steps are handled as before.

        Args:
            join: the id of the join.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if no end of the join was stored: it was pending, or has no continuation.

        Raises:
            ArgumentTypeError: before any I/O.
            JoinNotFound: this box has no such join.
        """
        store, transaction = self._joins(), resolve(tx, self._store)
        cancelled: bool = yield call(store.cancel_join, self._box, _join(join), tx=transaction)
        return cancelled

    @verb
    def get_join(self, join: UUID) -> Program[Join]:
        """Returns a join, with the numbers of steps that have completed and failed.

        Args:
            join: the id of the join.

        Returns:
            The join.

        Raises:
            ArgumentTypeError: before any I/O.
            JoinNotFound: this box has no such join.
        """
        id_, store = _join(join), self._joins()
        found: list[Join] = yield call(store.find_joins, self._box, JoinFilter(ids=(id_,)))
        if not found:
            raise JoinNotFound(f"there is no join {id_} in {self._box.kind} {self._box.name!r}")
        return found[0]

    @verb
    def joins(
        self,
        *,
        tenant_id: TenantId | None = None,
        statuses: Iterable[JoinStatus] | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> Program[list[Join]]:
        """Returns joins that fit, in the order in which they were started. An argument that is None does not restrict.

        Args:
            tenant_id: only joins of this tenant.
            statuses: only joins with one of these statuses.
            after: only joins with a larger number: for the next page, the `number` of the last join of this one.
            limit: how many at most: 100 by default.

        Returns:
            The joins.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        which = JoinFilter(
            tenant_id=None if tenant_id is None else _tenant(tenant_id),
            statuses=None if statuses is None else _statuses(statuses),
            after=selection.position(after),
            limit=check.count("limit", limit),
        )
        found: list[Join] = yield call(self._joins().find_joins, self._box, which)
        return found

    @verb
    def join_steps(self, join: UUID, *, after: int = 0, limit: int = 100) -> Program[list[JoinStep]]:
        """Returns the steps of a join, in the order of their messages.

        Args:
            join: the id of the join.
            after: only steps with a larger id: for the next page, the `id` of the last step of this one.
            limit: how many at most: 100 by default.

        Returns:
            The steps, with the keys of their messages and their statuses.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            JoinNotFound: this box has no such join.
        """
        page = {"after": selection.position(after), "limit": check.count("limit", limit)}
        found: list[JoinStep] = yield call(self._joins().find_steps, self._box, _join(join), **page)
        return found

    def _joins(self) -> JoinStore:
        if not self._features.joins or not isinstance(self._store, JoinStore):
            raise FeatureMissing(f"{self._store.name} has no joins: use a store whose Features.joins is True")
        return self._store


def _join(value: object) -> UUID:
    if not isinstance(value, UUID):
        hint = ": use UUID(text)" if isinstance(value, str) else ""
        raise ArgumentTypeError(f"join must be the id that start_join returned, not {type(value).__name__}{hint}")
    return value


def _tenant(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise ArgumentTypeError(f"tenant_id must be a str, an int or a UUID, not {type(value).__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ArgumentValueError("tenant_id does not fit into 64 bits: pass it as a str")
    return check.text("tenant_id", str(value) if not isinstance(value, str) else value)


def _metadata(value: object) -> str | None:
    return value if value is None or value == "" else check.text("metadata", value, longest=MAX_METADATA)


def _statuses(values: Iterable[JoinStatus]) -> frozenset[JoinStatus]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentTypeError(f"statuses must be a list of statuses, not {type(values).__name__}")
    try:
        return frozenset(JoinStatus(value) for value in values)
    except ValueError as error:
        raise ArgumentValueError(f"{error}; there are {', '.join(JoinStatus)}") from None


def _follow_up(name: str, topic: str | None, payload: object) -> FollowUp | None:
    if topic is None:
        if payload is not None:
            raise ArgumentValueError(f"{name}_payload is given without {name}_topic, so it would not be sent")
        return None
    from postroom._boxes import codec  # msgspec is imported with the first box

    format_, data = ("json", "null") if payload is None else codec.encode(payload)
    return FollowUp(check.text(f"{name}_topic", topic), data, format_)
