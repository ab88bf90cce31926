"""The verbs of a guard, for both modes."""

from __future__ import annotations

from uuid import UUID

from postroom._boxes import check
from postroom._boxes.cleaning import CleaningVerbs
from postroom._boxes.dead_letters import ReplayVerbs
from postroom._boxes.guard.key import AnyKey
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.guard.programs import NO_RESULT, Acquired, GuardPrograms, claim_of
from postroom._boxes.lookup import FindVerbs
from postroom._boxes.selection import fitting
from postroom._boxes.transaction import NOT_GIVEN
from postroom._kernel.guard import Begun
from postroom._kernel.message import AnyMessage, Claim
from postroom._kernel.policy import Box
from postroom._kernel.program import Program, call, verb
from postroom._kernel.states import State
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError, MessageNotFound
from postroom.spi import Tx


class GuardVerbs(FindVerbs, ReplayVerbs, CleaningVerbs):
    """The verbs of a guard. A record of a guard is a message: its id is the key, its source is the handler."""

    def __init__(self, box: Box, policy: GuardPolicy, store: RoomStore) -> None:
        super().__init__(box, store)
        self._programs = GuardPrograms(box, policy, store)

    @property
    def policy(self) -> GuardPolicy:
        """How the guard runs handlers."""
        return self._programs.policy

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
        return (
            yield from self._programs.begin_new(
                key,
                handler=handler,
                topic=topic,
                owner=owner,
                lease_seconds=lease_seconds,
                hash=hash,
                hash_algorithm=hash_algorithm,
            )
        )

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
            return (yield from self._programs.complete(begun, self._programs.encoded(result), tx))
        if result is not NO_RESULT:
            raise ArgumentTypeError("a result needs the claim that try_begin returned: pass that in place of the key")
        return (yield from self._programs.write_processed(begun, handler, tx))

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
        return (yield from self._programs.give_back(begun, tx))

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
        return (yield from self._programs.bury(begun, check.error_text("error", error, self._store.errors.redact), tx))

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
        claim = claim_of(begun)
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
        found = yield from self._programs.find_key(key, handler)
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
        return (yield from self._programs.read_processed(key, handler))

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
