"""How the transaction of a handler ends, other than by its commit."""

from __future__ import annotations

from datetime import timedelta

from postroom._kernel.decide import Outcome, describe
from postroom._runtime.fault import Fault
from postroom.errors import CommitUnknown, TransactionAborted, TransactionRefused


class RollBack(Exception):
    """Not an error: it ends a transaction."""


def first_error(outcomes: list[Outcome] | Fault) -> BaseException | None:
    """What the handler raised. The store may know more about it than its text says."""
    faults = [outcomes] if isinstance(outcomes, Fault) else outcomes
    return next((fault.error for fault in faults if isinstance(fault, Fault)), None)


def refused(refusal: Exception, outcomes: list[Outcome] | Fault) -> list[Outcome] | Fault:
    """The outcomes of a handler that caught the error of a refused write: a success would lose that write."""
    if isinstance(outcomes, Fault) or any(outcome.result != "success" for outcome in outcomes):
        return outcomes
    reason = f"a write was refused, and the handler caught the error: {describe(refusal)}"
    fault = Fault("failed", None, reason, refusal.with_traceback(None))
    return [fault] if len(outcomes) == 1 else fault


def fault_of(error: Exception, *, passes: bool, pause: timedelta | None) -> Fault:
    """Why a transaction failed after its handler had succeeded. The text of a driver may quote values: its type counts.

    `passes`: whether the error passes by itself. The transaction is not committed then, which is not the fault of the
    message: it is given back for `pause`, uncounted. A pause of None counts it: a message that always ends like this
    must not come back for ever.
    """
    if isinstance(error, CommitUnknown | TransactionAborted):
        return Fault("failed", None, str(error), error)
    if isinstance(error, TransactionRefused):
        failed = f". Before that, a statement failed ({error.failed})" if error.failed else ""
        ended = f"the handler ended its transaction: leave commit and rollback to the room{failed}"
        # What the store has said advises to begin a transaction, which is not for a handler to do.
        return Fault("failed", None, ended, TransactionRefused(ended))
    if not passes:
        return Fault("failed", None, type(error).__name__, error)
    reason = f"its transaction failed before it was committed: {type(error).__name__}"
    return Fault("retry", pause, reason) if pause is not None else Fault("failed", None, reason, error)
