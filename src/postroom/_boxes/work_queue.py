"""The verbs of the work queue: claim messages, settle them, keep their leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID

from postroom._boxes import check, dead_letter_log, selection
from postroom._boxes.base import BoxBase
from postroom._boxes.selection import Claimed
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._kernel.message import AnyMessage, Claim
from postroom._kernel.program import Program, call, verb
from postroom._kernel.queries import ClaimRequest
from postroom._kernel.settlement import Settlement, Target
from postroom.spi import Tx

DEFAULT_LEASE_SECONDS = 30
DEFAULT_BATCH_SIZE = 50


class WorkQueueVerbs(BoxBase):
    """Verbs for a worker of your own. A settlement of a message that its owner no longer holds changes nothing."""

    @verb
    def claim(
        self,
        owner: UUID,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        batch_size: int = DEFAULT_BATCH_SIZE,
        *,
        topics: Iterable[str] | None = None,
        tx: Tx = NOT_GIVEN,
    ) -> Program[list[AnyMessage]]:
        """Leases messages that are due and free. No other worker can claim them before the lease ends.

        Args:
            owner: the worker, an `OwnerToken.new()` that it keeps for its life.
            lease_seconds: how long the lease lasts: 30 by default.
            batch_size: how many messages at most: 50 by default.
            topics: only messages of these topics. None: of any topic.
            tx: your open transaction: the claim holds if it commits. Left out, the claim commits by itself.

        Returns:
            The messages, JSON payloads decoded to plain values. An empty list if none is ready.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            OrderMismatch: the box has another order in the store.
        """
        request = ClaimRequest(
            check.owner(owner),
            check.lease(lease_seconds),
            check.count("batch_size", batch_size),
            selection.topic_names(topics),
        )
        messages = yield call(self._store.claim, self._box, request, tx=resolve(tx, self._store))
        return self._decoded(messages)

    @verb
    def ack(self, owner: UUID, messages: Iterable[Claimed], *, tx: Tx = NOT_GIVEN) -> Program[list[bool]]:
        """Completes messages: they are done.

        Args:
            owner: the worker that has claimed them.
            messages: claimed messages, their claims, their keys or their message ids.
            tx: your open transaction: the messages are done if it commits. Left out, the write commits by itself.

        Returns:
            One bool per message: True if the owner still held it. A message that it no longer held is unchanged.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            AmbiguousMessageId: several sources use a message id that was passed alone.
        """
        return (yield from self._settle(owner, messages, Settlement.done, tx))

    @verb
    def abandon(
        self,
        owner: UUID,
        messages: Iterable[Claimed],
        *,
        last_error: str | None = None,
        delay: timedelta | None = None,
        tx: Tx = NOT_GIVEN,
    ) -> Program[list[bool]]:
        """Counts a failed attempt of messages, which wait for the next one.

        This verb ignores `max_attempts`, which the workers of a room apply. In a loop of your own, compare
        `message.attempt + 1` with it and call `fail`.

        Args:
            owner: the worker that has claimed them.
            messages: claimed messages, their claims, their keys or their message ids.
            last_error: the error to store with the messages.
            delay: how long they wait, above 0. None: as the `backoff` of the box has it.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            One bool per message: True if the owner still held it.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            AmbiguousMessageId: several sources use a message id that was passed alone.
        """
        error = check.optional_error("last_error", last_error, self._store.errors.redact)
        check.optional_duration("delay", delay)
        return (
            yield from self._settle(
                owner, messages, lambda target: Settlement.retry(target, delay=delay, error=error), tx
            )
        )

    @verb
    def release(
        self, owner: UUID, messages: Iterable[Claimed], *, delay: timedelta | None = None, tx: Tx = NOT_GIVEN
    ) -> Program[list[bool]]:
        """Returns messages to the queue without counting an attempt.

        Args:
            owner: the worker that has claimed them.
            messages: claimed messages, their claims, their keys or their message ids.
            delay: how long they wait, above 0. None: they can be claimed at once.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            One bool per message: True if the owner still held it.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            AmbiguousMessageId: several sources use a message id that was passed alone.
        """
        check.optional_duration("delay", delay)
        return (yield from self._settle(owner, messages, lambda target: Settlement.release(target, delay=delay), tx))

    @verb
    def renew(
        self,
        owner: UUID,
        messages: Iterable[AnyMessage | Claim],
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
    ) -> Program[list[bool]]:
        """Extends leases that still hold.

        Args:
            owner: the worker that has claimed the messages.
            messages: claimed messages or their claims.
            lease_seconds: how long the leases last from now: 30 by default.

        Returns:
            One bool per message: False if its lease is lost. Stop working on such a message.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        check.owner(owner)
        lease = check.lease(lease_seconds)
        claims = [selection.claim_of(owner, item) for item in selection.items(messages)]
        if not claims:
            return []
        renewed: list[bool] = yield call(self._store.renew, self._box, claims, lease)
        return renewed

    def _fail(self, owner: UUID, messages: Iterable[Claimed], error: str, tx: Tx) -> Program[list[bool]]:
        reason = check.error_text("error", error, self._store.errors.redact)
        items = selection.items(messages)
        dead = yield from self._settle(owner, items, lambda target: Settlement.dead(target, error=reason), tx)
        for item, is_dead in zip(items, dead, strict=True):
            if is_dead:
                dead_letter_log.write(self._store.name, self._box, item, "failed", reason)
        return dead

    def _settle(
        self, owner: UUID, messages: Iterable[Claimed], settle: Callable[[Target], Settlement], tx: Tx
    ) -> Program[list[bool]]:
        check.owner(owner)
        settlements = [settle(selection.target(owner, item)) for item in selection.items(messages)]
        transaction = resolve(tx, self._store)
        if not settlements:
            return []
        settled: list[bool] = yield call(self._store.settle, self._box, settlements, tx=transaction)
        return settled
