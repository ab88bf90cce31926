"""Handlers in a transaction of the store: their writes and the completion of their messages commit together."""

from __future__ import annotations

from datetime import timedelta

from postroom._kernel.decide import Outcome, describe
from postroom._kernel.policy import Box
from postroom._kernel.settlement import ClaimSettlement
from postroom._room_store import WorkerStore, handling
from postroom._runtime.execute import Executor
from postroom._runtime.fault import Fault
from postroom._runtime.in_hand import InHand
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.plan import WorkUnit
from postroom._runtime.results import Results
from postroom.errors import CommitUnknown, TransactionAborted, TransactionRefused

ROLLED_BACK = Outcome.RETRY.because("rolled back, since another message of its batch did not succeed")


class HandlerTransactions:
    """Runs units of transactional handlers."""

    def __init__(
        self, store: WorkerStore, box: Box, executor: Executor, results: Results, outcomes: Outcomes, in_hand: InHand
    ) -> None:
        self._store = store
        self._box = box
        self._executor = executor
        self._results = results
        self._outcomes = outcomes
        self._in_hand = in_hand
        self.is_stopping = False
        """Whether units that wait for their transaction are released."""

    async def run(self, unit: WorkUnit) -> bool | Fault:
        """Handles a unit in one transaction. Returns True if every message succeeded; or a fault, if the handler
        raised on a batch. Then nothing is settled, and each message must be handled alone."""
        outcomes: list[Outcome] | Fault = []
        kept: list[bool] = []
        has_begun = False
        ids = [message.id for message in unit.messages]
        try:
            async with self._store.transaction() as tx:
                has_begun = True
                if self.is_stopping:
                    raise _RollBack  # noqa: TRY301
                with handling.opened(self._store) as scope:
                    outcomes = await self._executor.run(unit, tx)
                if scope.refusal is not None:
                    outcomes = _refused(scope.refusal, outcomes)
                if isinstance(outcomes, Fault) or any(outcome.result != "success" for outcome in outcomes):
                    raise _RollBack from _first_error(outcomes)  # noqa: TRY301 - this ends the transaction
                done = [ClaimSettlement.done(message.lease.claim) for message in unit.messages]
                self._outcomes.completing.update(ids)
                kept = list(await self._store.settle(self._box, done, tx=tx))
                if not all(kept):
                    raise _RollBack  # noqa: TRY301
        except _RollBack:
            if outcomes == []:  # the handler was not called
                self._outcomes.release(unit.messages)
                return False
            return outcomes if isinstance(outcomes, Fault) else self._rolled_back(unit, outcomes, kept)
        except Exception as error:  # noqa: BLE001 - an error of the transaction counts as one of the handler
            fault = self._fault_of(error, unit, has_begun=has_begun)
            if has_begun and len(unit.messages) > 1 and fault.result != "retry":
                return fault
            return self._results.add_all(unit, [fault] * len(unit.messages))
        finally:
            self._outcomes.completing.difference_update(ids)
        for message in unit.messages:
            self._in_hand.remove(message.lease.claim, is_lost=False)
        return True

    def _fault_of(self, error: Exception, unit: WorkUnit, *, has_begun: bool) -> Fault:
        pause, most = self._box.work.idle[0], self._box.delivery.max_attempts
        if not has_begun:  # not the fault of the message
            reason = f"its transaction could not begin: {type(error).__name__}"
            return Fault("retry", pause, reason, error, ran=False)
        is_free = all(message.deliveries - message.attempt <= most for message in unit.messages)
        return fault_of(error, is_transient=self._store.is_transient(error), pause=pause if is_free else None)

    def _rolled_back(self, unit: WorkUnit, outcomes: list[Outcome], kept: list[bool]) -> bool:
        """Releases the messages that succeeded and were rolled back with the others. No attempt is counted."""
        if kept:
            self._results.drop(message for message, is_kept in zip(unit.messages, kept, strict=True) if not is_kept)
            self._outcomes.release(message for message, is_kept in zip(unit.messages, kept, strict=True) if is_kept)
            return False
        first = next(index for index, outcome in enumerate(outcomes) if outcome.result != "success")
        self._outcomes.release(unit.messages[:first])
        undone = [ROLLED_BACK if outcome.result == "success" else outcome for outcome in outcomes[first:]]
        return self._results.add_all(unit._replace(messages=unit.messages[first:]), undone)


class _RollBack(Exception):
    """Ends a transaction without a commit. It is not an error."""


def _first_error(outcomes: list[Outcome] | Fault) -> BaseException | None:
    """Returns what the handler raised. The store may know more about it than its text says."""
    faults = [outcomes] if isinstance(outcomes, Fault) else outcomes
    return next((fault.error for fault in faults if isinstance(fault, Fault)), None)


def _refused(refusal: Exception, outcomes: list[Outcome] | Fault) -> list[Outcome] | Fault:
    """Returns the outcomes of a handler that caught the error of a refused write: a success would lose that write."""
    if isinstance(outcomes, Fault) or any(outcome.result != "success" for outcome in outcomes):
        return outcomes
    reason = f"a write was refused, and the handler caught the error: {describe(refusal)}"
    fault = Fault("failed", None, reason, refusal.with_traceback(None))
    return [fault] if len(outcomes) == 1 else fault


def fault_of(error: Exception, *, is_transient: bool, pause: timedelta | None) -> Fault:
    """Returns why a transaction failed after its handler had succeeded: the type of a driver's error, since its text
    may quote values.

    `is_transient`: the error may disappear on a retry. The transaction is not committed then, which is not the fault
    of the message: it is released for `pause`, uncounted. A pause of None counts it, so that a message whose
    transaction always fails reaches its limit.
    """
    if isinstance(error, CommitUnknown | TransactionAborted):
        return Fault("failed", None, str(error), error)
    if isinstance(error, TransactionRefused):
        failed = f". Before that, a statement failed ({error.failed})" if error.failed else ""
        ended = f"the handler ended its transaction: leave commit and rollback to the room{failed}"
        # The text of the store advises to begin a transaction, which a handler must not do.
        return Fault("failed", None, ended, TransactionRefused(ended))
    if not is_transient:
        return Fault("failed", None, type(error).__name__, error)
    reason = f"its transaction failed before it was committed: {type(error).__name__}"
    return Fault("retry", pause, reason) if pause is not None else Fault("failed", None, reason, error)
