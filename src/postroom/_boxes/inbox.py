"""The inbox: each received message is handled once, however often it is delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from postroom._boxes import check, dead_letter_log
from postroom._boxes.box import BoxVerbs
from postroom._boxes.new_message import NewMessage
from postroom._boxes.selection import Claimed
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._boxes.workers import WorkerVerbs
from postroom._kernel.message import Draft, Key, Receipt
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.queries import Filter
from postroom._kernel.states import State
from postroom.spi import Mark, Tx


class InboxVerbs(BoxVerbs):
    """The verbs of an inbox besides those of every box."""

    @verb
    def already_processed(
        self,
        message_id: str,
        source: str,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        *,
        hash_algorithm: str = "sha256",
        tx: Tx = NOT_GIVEN,
    ) -> Program[bool]:
        """Returns True if the message is done. An unknown key is recorded as seen, in the same atomic step.

        Args:
            message_id: the sender's id.
            source: the sender.
            hash: a content hash. The first one is kept; a different one later is logged as a warning.
            hash_algorithm: the name of the algorithm (`"sha256"`). Hashes of one algorithm are compared.
            tx: your open transaction: the key is recorded if it commits. Left out, the write commits by itself.

        Returns:
            True if the message is done.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        draft = Draft(
            *_key(message_id, source),
            hash=check.digest(hash),
            hash_algorithm=check.text("hash_algorithm", hash_algorithm, longest=32),
        )
        [status] = yield call(self._store.record, self._box, [draft], tx=resolve(tx, self._store))
        return status.state is State.DONE

    @verb
    def is_processed(self, message_id: str, source: str) -> Program[bool]:
        """Returns True if the message is done. Only reads.

        Args:
            message_id: the sender's id.
            source: the sender.

        Returns:
            True if the message is done.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        key = _key(message_id, source)
        found = yield call(self._store.find, self._box, Filter(message_id=key.message_id, source=key.source))
        return bool(found) and found[-1].state is State.DONE

    @verb
    def mark_processing(self, message_id: str, source: str, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Makes a message that was only seen wait for a worker.

        Args:
            message_id: the sender's id.
            source: the sender.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the message changed.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        return (yield from self._mark(message_id, source, "processing", None, tx))

    @verb
    def mark_processed(self, message_id: str, source: str, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Makes a message done, without a claim. An unknown key is recorded as done. A lease on the message ends.

        Args:
            message_id: the sender's id.
            source: the sender.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the message changed.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        return (yield from self._mark(message_id, source, "processed", None, tx))

    @verb
    def mark_dead(self, message_id: str, source: str, *, error: str | None = None, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Makes a message a dead letter, without a claim, unless it is done. A lease on the message ends.

        Args:
            message_id: the sender's id.
            source: the sender.
            error: why, to store and log.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the message changed; False for an unknown key.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        reason = check.optional_error("error", error, self._store.errors.redact)
        is_dead = yield from self._mark(message_id, source, "dead", reason, tx)
        if is_dead:
            dead_letter_log.write(self._store.name, self._box, Key(source, message_id), "marked as dead", reason)
        return is_dead

    @verb
    def enqueue_dead(
        self,
        topic: str,
        payload: Any,
        *,
        source: str,
        message_id: str,
        error: str,
        headers: Mapping[str, str] | None = None,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        tx: Tx = NOT_GIVEN,
    ) -> Program[Receipt]:
        """Stores a message as a dead letter: for a delivery that cannot be handled, and must not be lost.

        The key is marked as dead before the content is stored, so no worker claims the message. If the call fails
        between the two, repeat it. A message with this key that waits, is claimed or is done is not changed.

        Args:
            topic: the topic, which selects the handler after a replay.
            payload: str and bytes are stored unchanged, other values as JSON.
            source: the sender.
            message_id: the sender's id.
            error: why, to store and log.
            headers: a mapping of str to str.
            hash: a content hash.
            tx: your open transaction: the message is stored if it commits. Left out, the writes commit by themselves.

        Returns:
            A `Receipt`; its `state` is dead, unless the key was known.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        reason = check.error_text("error", error, self._store.errors.redact)
        group = message_id if self._box.order.fifo else None  # a message that is dead keeps having no group
        new = NewMessage(topic, payload, source=source, message_id=message_id, headers=headers, hash=hash, group=group)
        draft = self._draft_of(new, self._box)
        transaction = resolve(tx, self._store)
        [status] = yield call(self._store.record, self._box, [draft], tx=transaction)
        if status.state is State.SEEN:
            [changed] = yield call(self._store.mark, self._box, [draft.key], "dead", error=reason, tx=transaction)
            if changed:
                dead_letter_log.write(self._store.name, self._box, draft.key, "stored as dead", reason)
        elif status.state is not State.DEAD:
            draft = draft._replace(on_duplicate="reject", on_conflict="reject")
        receipts: list[Receipt] = yield call(self._store.put, self._box, [draft], tx=transaction)
        return receipts[0]

    def _mark(self, message_id: str, source: str, mark: Mark, error: str | None, tx: Tx) -> Program[bool]:
        key = _key(message_id, source)
        step = call(self._store.mark, self._box, [key], mark, error=error, tx=resolve(tx, self._store))
        changed: list[bool] = yield step
        return changed[0]

    @verb
    def fail(self, owner: UUID, messages: Iterable[Claimed], error: str, *, tx: Tx = NOT_GIVEN) -> Program[list[bool]]:
        """Makes messages dead letters: kept with the error, not tried again, replayable.

        Args:
            owner: the worker that has claimed them.
            messages: claimed messages, their claims, their keys or their message ids.
            error: why, to store and log.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            One bool per message: True if the owner still held it.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            AmbiguousMessageId: several sources use a message id that was passed alone.
        """
        return (yield from self._fail(owner, messages, error, tx))


def _key(message_id: str, source: str) -> Key:
    return Key(check.text("source", source), check.text("message_id", message_id))


class Inbox(WorkerVerbs, InboxVerbs, Async, public="postroom.Inbox"):
    """An inbox for async code: stores each received message once, and calls its handlers. Made by `room.inbox()`.

    Enqueue messages with the sender's name and id. Register handlers with `handler`, or claim and settle messages in a
    loop of your own.
    """


class SyncInbox(InboxVerbs, Sync, public="postroom.sync.Inbox"):
    """An inbox for sync code: stores each received message once. Made by `room.inbox()` of `postroom.sync`.

    It has the verbs of `postroom.Inbox`, without handlers: claim and settle messages in a loop of your own.
    """


class TenantInbox(InboxVerbs, Async, public="postroom.TenantInbox"):
    """An inbox in one store of a room with many stores. Made by `room.router.inbox(key)`.

    Its handlers are those of `room.inbox()`, which serve all stores.
    """
