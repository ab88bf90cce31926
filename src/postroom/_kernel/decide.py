"""What a handler's result, or its exception, means for the message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, Literal

from postroom._kernel.message import Claim
from postroom._kernel.policy import Delivery
from postroom._kernel.settlement import Settlement


@dataclass(frozen=True, slots=True)
class Outcome:
    """A handler's answer for one message. Use the four constants; `after` and `because` add detail."""

    result: Literal["success", "failed", "retry", "dead"]
    delay: timedelta | None = None
    reason: str | None = None

    SUCCESS: ClassVar[Outcome]
    FAILED: ClassVar[Outcome]
    """Counts an attempt; tried again later, until `max_attempts`."""
    RETRY: ClassVar[Outcome]
    """Tried again without counting."""
    DEAD: ClassVar[Outcome]
    """Not tried again."""

    def after(self, delay: timedelta) -> Outcome:
        return replace(self, delay=delay)

    def because(self, reason: str) -> Outcome:
        return replace(self, reason=reason)


Outcome.SUCCESS = Outcome("success")
Outcome.FAILED = Outcome("failed")
Outcome.RETRY = Outcome("retry")
Outcome.DEAD = Outcome("dead")


def decide(answer: Outcome | BaseException | None, claim: Claim, attempt: int, policy: Delivery) -> Settlement:
    """(result or exception, attempts so far, policy) → settlement."""
    outcome = _as_outcome(answer)
    if outcome.result == "success":
        return Settlement.done(claim)
    if outcome.result == "retry":
        return Settlement.release(claim, delay=outcome.delay)
    error = outcome.reason or outcome.result
    if outcome.result == "dead" or attempt + 1 >= policy.max_attempts:
        return Settlement.dead(claim, error=error, counts=True)
    return Settlement.retry(claim, delay=outcome.delay or policy.backoff.delay(attempt + 1), error=error)


def _as_outcome(answer: Outcome | BaseException | None) -> Outcome:
    if answer is None:
        return Outcome.SUCCESS
    if isinstance(answer, BaseException):
        return Outcome.FAILED.because(describe(answer))
    return answer


def describe(error: BaseException) -> str:
    """An exception as one line for `last_error`: its type and message, without a traceback."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it is the user's class
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
