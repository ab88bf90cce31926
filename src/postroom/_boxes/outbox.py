"""The outbox: a message commits with the change that it reports, and is delivered until it is acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from postroom._boxes.box import BoxVerbs
from postroom._boxes.joins import JoinVerbs
from postroom._boxes.selection import Claimed
from postroom._boxes.transaction import NOT_GIVEN
from postroom._boxes.workers import WorkerVerbs
from postroom._kernel.program import Async, Program, Sync, verb
from postroom.spi import Tx


class OutboxVerbs(BoxVerbs, JoinVerbs):
    """The verbs of an outbox besides those of every box."""

    @verb
    def fail(
        self, owner: UUID, messages: Iterable[Claimed], error: str = "", *, tx: Tx = NOT_GIVEN
    ) -> Program[list[bool]]:
        """Makes messages dead letters: kept with the error, not tried again, replayable.

        Args:
            owner: the worker that has claimed them.
            messages: claimed messages, their claims, their keys or their message ids.
            error: why, to store and log. Empty by default.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            One bool per message: True if the owner still held it.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            AmbiguousMessageId: several sources use a message id that was passed alone.
        """
        return (yield from self._fail(owner, messages, error, tx))


class Outbox(WorkerVerbs, OutboxVerbs, Async, public="postroom.Outbox"):
    """An outbox for async code: stores messages in your transaction, and calls their handlers. Made by `room.outbox()`.

    Enqueue messages with `tx=`, together with the change that they report. Register handlers with `handler`, or claim
    and settle messages in a loop of your own.
    """


class SyncOutbox(OutboxVerbs, Sync, public="postroom.sync.Outbox"):
    """An outbox for sync code: stores messages in your transaction. Made by `room.outbox()` of `postroom.sync`.

    It has the verbs of `postroom.Outbox`, without handlers: claim and settle messages in a loop of your own, or let an
    async process handle them.
    """


class TenantOutbox(OutboxVerbs, Async, public="postroom.TenantOutbox"):
    """An outbox in one store of a room with many stores. Made by `room.router.outbox(key)`.

    Its handlers are those of `room.outbox()`, which serve all stores.
    """
