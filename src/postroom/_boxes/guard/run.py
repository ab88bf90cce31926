"""One execution of a guarded handler: begins it, and stores its outcome. The programs serve both modes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom._boxes import check
from postroom._boxes.guard.key import AnyKey
from postroom._boxes.transaction import SEPARATE
from postroom._kernel.decide import describe
from postroom._kernel.guard import BeginStatus, Begun
from postroom._kernel.message import Claim
from postroom._kernel.program import Program, call
from postroom._kernel.scope import Entry
from postroom._kernel.settlement import Result
from postroom._room_store import RoomStore, handling
from postroom.errors import ArgumentValueError, GuardBusy, GuardConflict, LeaseLost, ResultNotKept
from postroom.spi import Tx

if TYPE_CHECKING:
    from postroom._boxes.guard.programs import GuardPrograms

_log = logging.getLogger("postroom")

NO_HASHES = 'hash needs a claim, which mode="mark_after" does not have: contents would not be compared'

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds between two begins, while another caller has the key: the pause doubles."""


class RunRequest(NamedTuple):
    """What is about to run."""

    key: AnyKey
    handler: str | None = None
    topic: str | None = None
    hash: bytes | None = None
    wait: timedelta | None = None


class Released(Exception):
    """Ends a run without an outcome. It is not an error."""


class Run:
    """One execution of a guarded handler, as `guard.run(key)` yields it."""

    def __init__(self, guard: GuardPrograms, request: RunRequest) -> None:
        self._guard = guard
        self._request = request
        self._begun = Begun(BeginStatus.BUSY)
        self._kept: Result | None = None
        self._is_released = False
        self._lease_lost = False
        self._stop_renewal: Callable[[], None] | None = None
        self._transaction: Any = None
        self._scope: Any = None
        self._entry: Entry[RoomStore] | None = None
        self.tx: Tx = None
        """With `mode="transactional"`: the open transaction, to write in. The completion commits with it."""

    @property
    def status(self) -> BeginStatus:
        """What the guard found for the key."""
        return self._begun.status

    @property
    def acquired(self) -> bool:
        """True if the caller has to handle the message. False: it was handled before, or has failed for good."""
        return self._begun.status is BeginStatus.ACQUIRED

    @property
    def deliveries(self) -> int:
        """How often the key was acquired, including this time. 0 with `mode="mark_after"`."""
        return self._begun.deliveries

    @property
    def lease_lost(self) -> bool:
        """True if the lease could not be renewed. Stop then: another caller may handle the message."""
        return self._lease_lost

    @property
    def has_result(self) -> bool:
        """True if the message was handled before, and its result was kept."""
        return self._begun.has_result

    @property
    def result(self) -> Any:
        """What the handler returned, if the message was handled before.

        Raises:
            ResultNotKept: no result was kept.
        """
        if not self.has_result:
            raise ResultNotKept
        return self._begun.result

    def keep(self, result: object) -> None:
        """Sets the result that later duplicates get. It is stored with the completion.

        Raises:
            ArgumentTypeError, ArgumentValueError: the result cannot be written as JSON.
        """
        self._kept = self._guard.encoded(result)

    def release(self) -> None:
        """Lets the end of the block release the key, without an error: the next delivery begins another execution.

        With `mode="transactional"`, the transaction is rolled back.
        """
        self._is_released = True

    def __repr__(self) -> str:
        return f"<Run {self.status}>"

    # -- before the handler ----------------------------------------------------------------------------------------

    def _begin(self, sleep: Callable[[float], object]) -> Program[None]:
        """Begins the execution, and waits while another caller has the key, if it may wait."""
        guard, policy = self._guard, self._guard.policy
        wait = policy.wait if self._request.wait is None else self._request.wait
        deadline = time.monotonic() + (0.0 if wait is None else wait.total_seconds())
        pause = FIRST_PAUSE
        while True:
            self._begun = yield from self._try()
            left = deadline - time.monotonic()
            if self._begun.status is not BeginStatus.BUSY or left <= 0:
                break
            yield call(sleep, min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        if self._begun.status is BeginStatus.CONFLICT:
            raise GuardConflict
        # With `mark_before` each message is tried at most once: a duplicate has nothing to wait for.
        if self._begun.status is BeginStatus.BUSY and policy.mode != "mark_before":
            raise GuardBusy(until=self._begun.until, name=guard.box.name)

    def _try(self) -> Program[Begun]:
        guard, (key, handler, topic, hash_, _) = self._guard, self._request
        guard.check_writes()
        if guard.policy.mode == "mark_after":
            if hash_ is not None:
                raise ArgumentValueError(NO_HASHES)
            processed = yield from guard.read_processed(key, handler)
            return Begun(BeginStatus.PROCESSED if processed else BeginStatus.ACQUIRED)
        return (yield from guard.begin_new(key, handler=handler, topic=topic, hash=hash_))

    @property
    def _claim(self) -> Claim | None:
        return self._begun.claim if self.acquired else None

    def _open_scope(self) -> None:
        """Lets the writes of the handler know that they belong into its transaction."""
        self._scope = handling.opened(self._guard.store)
        self._entry = self._scope.__enter__()

    def _close_scope(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(None, None, None)

    # -- after the handler -----------------------------------------------------------------------------------------

    def _error_of(self, error: BaseException | None) -> BaseException | None:
        """Returns why the execution has no outcome; None: it has succeeded."""
        return Released() if error is None and self._is_released else error

    def _succeed(self, tx: Tx = SEPARATE) -> Program[None]:
        """Stores that the handler has succeeded. `tx`: the transaction of the handler."""
        guard = self._guard
        if guard.policy.mode == "mark_after":
            yield from guard.write_processed(self._request.key, self._request.handler, tx)
        elif not (yield from guard.complete(self._begun, self._kept, tx)):
            self._lease_lost = True
            raise LeaseLost
        _log.debug("processed %s", guard.where(self._begun))

    def _check_refusal(self) -> None:
        """Raises the error of a write that was refused, if the handler has caught it: the write would be lost."""
        if self._entry is not None and self._entry.refusal is not None:
            raise self._entry.refusal

    def _settle_unknown(self, error: BaseException) -> Program[bool]:
        """After a commit that has raised: returns True if it has taken place, else stores the failure."""
        claim = self._claim
        if claim is not None and (yield from self._guard.is_completed(claim)):
            return True
        yield from self._give_up(error)
        return False

    def _give_up(self, error: BaseException) -> Program[None]:
        """Stores that the handler has raised. An error of the store is logged: the caller gets that of the handler."""
        try:
            yield from self._fail_or_release(error)
        except Exception as other:  # noqa: BLE001 - see above
            guard = self._guard
            name, where = type(other).__name__, guard.where(self._begun)
            _log.error("the outcome could not be stored (%s); the lease ends by itself: %s", name, where)

    def _fail_or_release(self, error: BaseException) -> Program[None]:
        guard, policy = self._guard, self._guard.policy
        if policy.mode == "mark_after" or self._claim is None:
            return
        if isinstance(error, Released):
            yield from guard.give_back(self._begun)
            return
        is_dead = isinstance(error, policy.dead_on) or (policy.mode == "mark_before" and not policy.release_on_error)
        if is_dead:
            text = check.error_text("error", describe(error), guard.store.errors.redact)
            yield from guard.bury(self._begun, text, SEPARATE)
        else:
            released = yield from guard.give_back(self._begun, SEPARATE)
            if released:
                reason = guard.store.errors.of(error)
                _log.warning("the handler raised, and the key is released: %s: %s", reason, guard.where(self._begun))
