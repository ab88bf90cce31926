"""The verbs of a guard, for both modes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Final
from uuid import UUID

from postroom._boxes import check, dead_letter_log
from postroom._boxes.cleaning import CleaningVerbs
from postroom._boxes.dead_letters import ReplayVerbs
from postroom._boxes.guard.key import AnyKey, key_text
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.lookup import FindVerbs
from postroom._boxes.selection import fitting
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._kernel.guard import Begin, BeginStatus, Begun
from postroom._kernel.ids import OwnerToken
from postroom._kernel.message import AnyMessage, Claim, Draft, Key
from postroom._kernel.policy import Box
from postroom._kernel.program import Program, call, verb
from postroom._kernel.queries import Filter
from postroom._kernel.settlement import Result, Settlement
from postroom._kernel.states import State
from postroom._kernel.texts import escape
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError, ArgumentValueError, MessageNotFound
from postroom.spi import Tx

_log = logging.getLogger("postroom")


class _NoResult(Enum):
    NO_RESULT = "<no result>"

    def __repr__(self) -> str:
        return str(self.value)


NO_RESULT: Final = _NoResult.NO_RESULT
"""The default of `result`. None is a result."""

Acquired = Begun | Claim
"""A key that the caller has acquired: what `try_begin` returned, or its claim."""
Settle = Callable[[Claim], Settlement]


class GuardVerbs(FindVerbs, ReplayVerbs, CleaningVerbs):
    """The verbs of a guard. A record of a guard is a message: its id is the key, its source is the handler."""

    def __init__(self, box: Box, policy: GuardPolicy, store: RoomStore) -> None:
        from postroom._boxes.guard import results  # which imports msgspec

        super().__init__(box, store)
        self._policy = policy
        self._results = results

    @property
    def policy(self) -> GuardPolicy:
        """How the guard runs handlers."""
        return self._policy

    @verb
    def try_begin(
        self,
        key: AnyKey,
        *,
        handler: str | None = None,
        topic: str | None = None,
        owner: UUID | None = None,
        lease_seconds: float | None = None,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        hash_algorithm: str = "sha256",
    ) -> Program[Begun]:
        """Begins an execution, unless another one has the key. Commits by itself, before it returns.

        Args:
            key: what identifies the message: a text of up to 255 characters, or a `GuardKey`.
            handler: the handler. With `scope="handler"`, each handler has its own records. None: the guard.
            topic: the type of the message, to store in the record. None: the handler.
            owner: a token of this execution. A second call with the same token returns the same claim, as long as the
                lease holds: for a caller that has lost the response. None: a new token.
            lease_seconds: how long the lease lasts. None: as the guard has it.
            hash: a content hash. If the record has another one, the status is `conflict`.
            hash_algorithm: the name of the algorithm. Hashes of one algorithm are compared.

        Returns:
            A `Begun`: its `status` is `acquired`, `processed`, `busy`, `conflict` or `dead`.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O; also for a missing key.
        """
        lease = self._lease(lease_seconds)
        token = OwnerToken.new() if owner is None else check.owner(owner)
        draft = Draft(
            *self._key(key, handler),
            topic=self._topic(topic, handler),
            hash=check.digest(hash),
            hash_algorithm=check.text("hash_algorithm", hash_algorithm, longest=32),
        )
        return (yield from self._begin(Begin(draft, token, lease)))

    def _begin(self, begin: Begin) -> Program[Begun]:
        if not self._policy.enabled:
            return Begun(BeginStatus.ACQUIRED, deliveries=1)
        [begun] = yield call(self._store.begin, self._box, [begin])
        return self._results.decoded(begun)

    @verb
    def mark_processed(
        self,
        begun: Acquired | AnyKey,
        *,
        result: object = NO_RESULT,
        handler: str | None = None,
        tx: Tx = NOT_GIVEN,
    ) -> Program[bool]:
        """Records that a message was processed.

        Args:
            begun: what `try_begin` returned, or its claim: recorded only if the lease is still the caller's. Or a key:
                recorded without a claim, and a lease of another caller ends.
            result: what the handler returned, to return it for duplicates. Left out, no result is kept. A result that
                is larger than `max_result_size` is not kept either.
            handler: with a key: the handler, as for `try_begin`.
            tx: your open transaction: it is recorded if that commits. Left out, the write commits by itself.

        Returns:
            True if it is recorded. False if the lease was lost, or, for a key, if it was recorded before.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        if isinstance(begun, Begun | Claim):
            kept = None if result is NO_RESULT else self._encoded(result)
            return (yield from self._settle(begun, lambda claim: Settlement.done(claim, kept), tx))
        if result is not NO_RESULT:
            raise ArgumentTypeError("a result needs the claim that try_begin returned: pass that in place of the key")
        key, transaction = self._key(begun, handler), resolve(tx, self._store)
        if not self._policy.enabled:
            return True
        [marked] = yield call(self._store.mark, self._box, [key], "processed", tx=transaction)
        return bool(marked)

    @verb
    def release(self, begun: Acquired, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Ends an execution without an outcome: the next delivery begins another one.

        Args:
            begun: what `try_begin` returned, or its claim.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the lease was still the caller's.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        released = yield from self._settle(begun, Settlement.release, tx)
        _log.debug("released %s", self._where(begun))
        return released

    @verb
    def fail(self, begun: Acquired, error: str, *, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Records that an execution has failed for good: later deliveries are skipped, until a `replay`.

        Args:
            begun: what `try_begin` returned, or its claim.
            error: why, to store and log.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            True if the lease was still the caller's.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        return (yield from self._fail(begun, check.error_text("error", error, self._store.errors.redact), tx))

    def _fail(self, begun: Acquired, error: str, tx: Tx = NOT_GIVEN) -> Program[bool]:
        is_dead = yield from self._settle(begun, lambda claim: Settlement.dead(claim, error=error, counts=True), tx)
        claim = begun if isinstance(begun, Claim) else begun.claim
        if is_dead and claim is not None:
            dead_letter_log.write(self._store.name, self._box, claim, "failed", error)
        return is_dead

    @verb
    def renew(self, begun: Acquired, lease_seconds: float | None = None) -> Program[bool]:
        """Extends a lease that still holds.

        Args:
            begun: what `try_begin` returned, or its claim.
            lease_seconds: how long it lasts from now. None: as the guard has it.

        Returns:
            False if the lease is lost: stop, since another caller may run the handler.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        claim = _claim_of(begun)
        lease = check.lease(self._box.work.lease.total_seconds() if lease_seconds is None else lease_seconds)
        if claim is None:
            return True
        [renewed] = yield call(self._store.renew, self._box, [claim], lease)
        return bool(renewed)

    @verb
    def get(self, key: AnyKey, *, handler: str | None = None) -> Program[AnyMessage]:
        """Returns the record of a key.

        Args:
            key: the key.
            handler: the handler, as for `try_begin`.

        Returns:
            The record, as a message. Its payload is the result, if one was kept.

        Raises:
            MessageNotFound: the key has no record.
        """
        found = yield from self._find_key(key, handler)
        if found is None:
            raise MessageNotFound(f"there is no record of this key in guard {self._box.name!r}")
        return found

    @verb
    def is_processed(self, key: AnyKey, *, handler: str | None = None) -> Program[bool]:
        """Returns True if the key is recorded as processed. Only reads.

        Another caller may process the message right after this call: use `try_begin` to keep it from doing so.

        Args:
            key: the key.
            handler: the handler, as for `try_begin`.

        Returns:
            True if it is processed. False while a handler runs.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        key_text(key)
        if not self._policy.enabled:
            return False
        found = yield from self._find_key(key, handler)
        return found is not None and found.state is State.DONE

    @verb
    def unfinished(self, *, after: int = 0, limit: int = 100) -> Program[list[AnyMessage]]:
        """Returns the records of executions that have begun and have no outcome, in id order.

        Such a handler still runs, or its process has ended. With `mode="mark_before"`, no other execution begins by
        itself: `mark_processed` or `replay` after `fail` decides what becomes of the message.

        Args:
            after: only records with a larger id: for the next page, the id of the last record of this one.
            limit: how many at most: 100 by default.

        Returns:
            The records, as messages. `claim.until` is the end of the lease.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        which = fitting([State.CLAIMED], after=after, limit=limit)
        return self._decoded((yield call(self._store.find, self._box, which)))

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _settle(self, begun: Acquired, settle: Settle, tx: Tx = NOT_GIVEN) -> Program[bool]:
        claim, transaction = _claim_of(begun), resolve(tx, self._store)
        if claim is None:
            return True
        settlement = settle(claim)
        [settled] = yield call(self._store.settle, self._box, [settlement], tx=transaction)
        if settled or settlement.verdict != "done" or transaction is not None:
            return bool(settled)
        # The response to a first call may be lost. Each execution has its own owner, so the record shows whose it is.
        found = yield call(self._store.find, self._box, Filter(ids=(claim.id,), limit=1))
        return bool(found) and found[0].state is State.DONE and found[0].completed_by == claim.owner

    def _encoded(self, value: object) -> Result | None:
        result = self._results.encode_result(value)
        size, most = self._results.size_of(result), self._policy.max_result_size
        if size <= most:
            return result
        where = escape(f"store={self._store.name} box={self._box.key}")
        _log.warning("a result of %d bytes was not kept, since at most %d are: %s", size, most, where)
        return None

    def _find_key(self, key: AnyKey, handler: str | None) -> Program[AnyMessage | None]:
        source, message_id = self._key(key, handler)
        found = yield call(self._store.find, self._box, Filter(source=source, message_id=message_id))
        return self._decode(found[-1]) if found else None

    def _key(self, key: AnyKey, handler: str | None) -> Key:
        named = check.optional_text("handler", handler)
        by_handler = named is not None and self._policy.scope == "handler"
        return Key(named if by_handler and named else self._box.name, key_text(key))

    def _topic(self, topic: str | None, handler: str | None) -> str:
        return check.text("topic", topic or handler or self._box.name)

    def _lease(self, lease_seconds: float | None) -> timedelta | None:
        if lease_seconds is not None:
            return check.lease(lease_seconds)
        return self._box.work.lease if self._policy.has_lease_end else None

    def _where(self, begun: Acquired) -> str:
        claim = begun if isinstance(begun, Claim) else begun.claim
        name = "" if claim is None else f" id={claim.id}"
        return escape(f"store={self._store.name} box={self._box.key}{name}")


def _claim_of(begun: Acquired) -> Claim | None:
    """Returns the claim of an execution that has begun; None if its guard is disabled."""
    if isinstance(begun, Claim):
        return begun
    if not isinstance(begun, Begun):
        raise ArgumentTypeError(f"pass what try_begin returned, or its claim, not {type(begun).__name__}")
    if begun.status is not BeginStatus.ACQUIRED:
        raise ArgumentValueError(f"the key was not acquired: its status is {begun.status}")
    return begun.claim
