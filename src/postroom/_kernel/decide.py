"""From the result or the exception of a handler to a settlement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, Literal

from postroom._kernel.message import Claim
from postroom._kernel.policy import Delivery
from postroom._kernel.settlement import ClaimSettlement


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a handler returns for one message. Use the four constants; `after` and `because` add detail."""

    result: Literal["success", "failed", "retry", "dead"]
    delay: timedelta | None = None
    reason: str | None = None

    SUCCESS: ClassVar[Outcome]
    FAILED: ClassVar[Outcome]
    """Counts an attempt. The message is handled again later, up to `max_attempts` times."""
    RETRY: ClassVar[Outcome]
    """The message is handled again, and no attempt is counted."""
    DEAD: ClassVar[Outcome]
    """The message becomes a dead letter."""

    def after(self, delay: timedelta) -> Outcome:
        """Returns this outcome with a `delay` before the next attempt, in place of the backoff."""
        return replace(self, delay=delay)

    def because(self, reason: str) -> Outcome:
        """Returns this outcome with a `reason`, which is stored as `last_error` and logged."""
        return replace(self, reason=reason)


Outcome.SUCCESS = Outcome("success")
Outcome.FAILED = Outcome("failed")
Outcome.RETRY = Outcome("retry")
Outcome.DEAD = Outcome("dead")


def decide(result: Outcome | BaseException | None, claim: Claim, attempt: int, policy: Delivery) -> ClaimSettlement:
    """Returns the settlement for what a handler returned or raised, after `attempt` earlier attempts."""
    outcome = _as_outcome(result)
    if outcome.result == "success":
        return ClaimSettlement.done(claim)
    if outcome.result == "retry":
        return ClaimSettlement.release(claim, delay=outcome.delay)
    error = outcome.reason or outcome.result
    if outcome.result == "dead" or attempt + 1 >= policy.max_attempts:
        return ClaimSettlement.dead(claim, error=error, counts=True)
    return ClaimSettlement.retry(claim, delay=outcome.delay or policy.backoff.delay(attempt + 1), error=error)


def _as_outcome(result: Outcome | BaseException | None) -> Outcome:
    if result is None:
        return Outcome.SUCCESS
    if isinstance(result, BaseException):
        return Outcome.FAILED.because(describe(result))
    return result


def describe(error: BaseException) -> str:
    """Returns an exception as one line for `last_error`: its type and text, without a traceback."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a class of the user may raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
