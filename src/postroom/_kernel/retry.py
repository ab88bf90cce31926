"""How often a verb is retried after a transient error of the store."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from postroom.errors import ArgumentValueError


@dataclass(frozen=True, slots=True)
class StorageRetry:
    """Tries after the first, each after a longer delay. Never inside a caller's transaction."""

    max_retries: int = 3
    initial_delay: float = 0.1
    max_delay: float = 5.0
    multiplier: float = 2.0
    jitter: bool = True
    """Whether each delay is shortened by a random part of up to one half, so that clients do not retry together."""

    NONE: ClassVar[StorageRetry]

    def __post_init__(self) -> None:
        if self.max_retries < 0 or self.initial_delay <= 0 or self.max_delay <= 0 or self.multiplier < 1:
            raise ArgumentValueError(
                "a StorageRetry needs max_retries of 0 or more, delays above 0 and a multiplier of 1 or more"
            )

    def delay(self, retry: int) -> float:
        """Returns the seconds before the retry with this number, from 1."""
        seconds = min(self.initial_delay * self.multiplier ** (retry - 1), self.max_delay)
        return seconds * random.uniform(0.5, 1) if self.jitter else seconds  # noqa: S311 - spreads load


StorageRetry.NONE = StorageRetry(max_retries=0)
