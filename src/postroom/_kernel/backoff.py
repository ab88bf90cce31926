"""How long a message waits before its next attempt."""

from __future__ import annotations

import logging
import math
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from postroom._kernel.limits import LONGEST
from postroom.errors import ArgumentTypeError, ArgumentValueError

_log = logging.getLogger("postroom")

_MAX_EXPONENT = 64  # 2 ** 64 seconds is longer than any cap


@dataclass(frozen=True, slots=True)
class Backoff:
    """From the number of an attempt, from 1, to the delay before the next one. Use the named constructors.

    The default is `min(2 ** attempt, 60)` seconds, exactly. No delay is longer than a hundred years.
    """

    curve: Callable[[int], float]
    """Returns the seconds for an attempt."""
    jitter: float = 0.0
    """The part of the delay that is random: 0.2 shortens it by up to a fifth."""

    @classmethod
    def exponential(cls, *, base: float = 2.0, cap: float = 60.0, jitter: float = 0.0) -> Backoff:
        """Returns a backoff that waits `base ** attempt` seconds, but at most `cap`. Defaults: `base=2`, `cap=60`.

        `jitter` is the part of the delay that is random: 0.2 takes off up to a fifth.
        """
        _check_positive(base=base, cap=cap)
        return cls(lambda attempt: min(base ** min(attempt, _MAX_EXPONENT), cap), jitter)

    @classmethod
    def constant(cls, seconds: float, *, jitter: float = 0.0) -> Backoff:
        """Returns a backoff that always waits `seconds`. `jitter` is the part of the delay that is random."""
        _check_positive(seconds=seconds)
        return cls(lambda _attempt: seconds, jitter)

    @classmethod
    def immediate(cls) -> Backoff:
        """Returns a backoff that does not wait."""
        return cls(lambda _attempt: 0.0)

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 1:
            raise ArgumentValueError(f"jitter must be between 0 and 1, not {self.jitter!r}")

    def delay(self, attempt: int) -> timedelta:
        """Returns the delay after the failed attempt of number `attempt`, from 1: between 0 and a hundred years.

        A curve may be any function. Where it raises, or returns no number, the default curve is used: the outcome of a
        message must be stored all the same.
        """
        try:
            seconds = float(self.curve(attempt))
        except Exception as error:  # noqa: BLE001 - a function of the user may raise anything
            # Without its text, which is not redacted: a curve may belong to several rooms.
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} at {last.filename}:{last.lineno}"
            _log.error("the backoff failed for attempt %d (%s); the default is used", attempt, what)
            seconds = _default_curve(attempt)
        if math.isnan(seconds):
            _log.error("the backoff returned no number for attempt %d; the default is used", attempt)
            seconds = _default_curve(attempt)
        if self.jitter:
            seconds *= 1 - self.jitter * random.random()  # noqa: S311 - spreads load, guards nothing
        return timedelta(seconds=min(max(seconds, 0.0), LONGEST.total_seconds()))


def _default_curve(attempt: int) -> float:
    return min(2.0 ** min(attempt, _MAX_EXPONENT), 60.0)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentTypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
        if not value > 0:  # NaN is not
            raise ArgumentValueError(f"{name} must be above 0, not {value!r}")
