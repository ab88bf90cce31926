"""The programs of a guard, which its verbs and its runs share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Final
from uuid import UUID

from postroom._boxes import check, dead_letter_log
from postroom._boxes.guard.key import AnyKey, key_text
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.transaction import NOT_GIVEN, SEPARATE, resolve
from postroom._kernel.guard import Begin, BeginStatus, Begun
from postroom._kernel.ids import OwnerToken
from postroom._kernel.message import AnyMessage, Claim, Draft, Key
from postroom._kernel.policy import Box
from postroom._kernel.program import Program, call
from postroom._kernel.queries import Filter
from postroom._kernel.settlement import Result, Settlement
from postroom._kernel.states import State
from postroom._kernel.texts import escape
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError, ArgumentValueError
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


class GuardPrograms:
    """What a guard does with its store. A record is a message: its id is the key, its source is the handler."""

    def __init__(self, box: Box, policy: GuardPolicy, store: RoomStore) -> None:
        # Imported with the first guard: both import msgspec.
        from postroom._boxes.codec import decode
        from postroom._boxes.guard import results

        self.box = box
        self.policy = policy
        self.store = store
        self._decode = decode
        self._results = results

    def begin_new(
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
        """Begins an execution. See `try_begin`."""
        lease = self._lease(lease_seconds)
        token = OwnerToken.new() if owner is None else check.owner(owner)
        draft = Draft(
            *self.key_of(key, handler),
            topic=check.text("topic", topic or handler or self.box.name),
            hash=check.digest(hash),
            hash_algorithm=check.text("hash_algorithm", hash_algorithm, longest=32),
        )
        if not self.policy.enabled:
            return Begun(BeginStatus.ACQUIRED, deliveries=1)
        self.check_writes()
        [begun] = yield call(self.store.begin, self.box, [Begin(draft, token, lease)])
        return self._results.decoded(begun)

    def check_writes(self) -> None:
        """Raises inside a transactional handler that holds the only write lock: a begin would wait for itself."""
        if self.policy.enabled:
            resolve(SEPARATE, self.store)

    def complete(self, begun: Acquired, kept: Result | None, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Records a success, with its result. Returns False if the lease was lost."""
        claim, transaction = claim_of(begun), resolve(tx, self.store)
        settled = yield from self._settle(begun, lambda claim: Settlement.done(claim, kept), tx)
        if settled or claim is None or transaction is not None:
            return settled
        # The response to a first call may be lost. Each execution has its own owner, so the record shows whose it is.
        return (yield from self.is_completed(claim))

    def is_completed(self, claim: Claim) -> Program[bool]:
        """Returns True if the owner of this claim has completed its record."""
        found = yield call(self.store.find, self.box, Filter(ids=(claim.id,), limit=1))
        return bool(found) and found[0].state is State.DONE and found[0].completed_by == claim.owner

    def give_back(self, begun: Acquired, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Ends an execution without an outcome. Returns False if the lease was lost."""
        released = yield from self._settle(begun, Settlement.release, tx)
        _log.debug("released %s", self.where(begun))
        return released

    def bury(self, begun: Acquired, error: str, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Records a final failure. Returns False if the lease was lost."""
        is_dead = yield from self._settle(begun, lambda claim: Settlement.dead(claim, error=error, counts=True), tx)
        claim = claim_of(begun)
        if is_dead and claim is not None:
            dead_letter_log.write(self.store.name, self.box, claim, "failed", error)
        return is_dead

    def _settle(self, begun: Acquired, settle: Settle, tx: Tx) -> Program[bool]:
        claim, transaction = claim_of(begun), resolve(tx, self.store)
        if claim is None:
            return True
        [settled] = yield call(self.store.settle, self.box, [settle(claim)], tx=transaction)
        return bool(settled)

    def read_processed(self, key: AnyKey, handler: str | None) -> Program[bool]:
        key_text(key)
        if not self.policy.enabled:
            return False
        found = yield from self.find_key(key, handler)
        return found is not None and found.state is State.DONE

    def write_processed(self, key: AnyKey, handler: str | None, tx: Tx = NOT_GIVEN) -> Program[bool]:
        """Records a key as processed, without a claim. Returns False if it was recorded before."""
        named, transaction = self.key_of(key, handler), resolve(tx, self.store)
        if not self.policy.enabled:
            return True
        [marked] = yield call(self.store.mark, self.box, [named], "processed", tx=transaction)
        return bool(marked)

    def find_key(self, key: AnyKey, handler: str | None) -> Program[AnyMessage | None]:
        source, message_id = self.key_of(key, handler)
        found = yield call(self.store.find, self.box, Filter(source=source, message_id=message_id))
        return self._decode(found[-1]) if found else None

    def encoded(self, value: object) -> Result | None:
        """Returns a result as it is stored; None for NO_RESULT, and for a result that is too large."""
        if value is NO_RESULT:
            return None
        result = self._results.encode_result(value)
        size, most = self._results.size_of(result), self.policy.max_result_size
        if size <= most:
            return result
        where = escape(f"store={self.store.name} box={self.box.key}")
        _log.warning("a result of %d bytes was not kept, since at most %d are: %s", size, most, where)
        return None

    def key_of(self, key: AnyKey, handler: str | None) -> Key:
        named = check.optional_text("handler", handler)
        source = self.box.name if named is None or self.policy.scope == "message" else named
        return Key(source, key_text(key))

    def _lease(self, lease_seconds: float | None) -> timedelta | None:
        if lease_seconds is not None:
            return check.lease(lease_seconds)
        return self.box.work.lease if self.policy.has_lease_end else None

    def where(self, begun: Acquired) -> str:
        claim = begun if isinstance(begun, Claim) else begun.claim
        name = "" if claim is None else f" id={claim.id}"
        return escape(f"store={self.store.name} box={self.box.key}{name}")


def claim_of(begun: Acquired) -> Claim | None:
    """Returns the claim of an execution that has begun; None if its guard is disabled."""
    if isinstance(begun, Claim):
        return begun
    if not isinstance(begun, Begun):
        raise ArgumentTypeError(f"pass what try_begin returned, or its claim, not {type(begun).__name__}")
    if begun.status is not BeginStatus.ACQUIRED:
        raise ArgumentValueError(f"the key was not acquired: its status is {begun.status}")
    return begun.claim
