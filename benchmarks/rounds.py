"""Rounds of short runs: the machine is noisy, so contenders run one after the other, again and again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass
class Case:
    """One measured thing: messages per second, by contender and round."""

    name: str
    rates: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, contender: str) -> float | None:
        rates = self.rates.get(contender)
        return median(rates) if rates else None

    def ratios(self, contender: str, limit: str) -> list[float]:
        """How the contender did beside the limit, round by round."""
        return [a / b for a, b in zip(self.rates.get(contender, []), self.rates.get(limit, []), strict=False)]


@dataclass(frozen=True)
class Rounds:
    """In a round each contender runs `runs` times, interleaved with the others; its rate is over all of them.

    A burst of other work on the machine then falls on all contenders alike, and what happens rarely, such as a
    checkpoint, still counts.
    """

    count: int
    runs: int
    """Of each contender in a round."""

    def take(
        self, messages: int, contenders: Mapping[K, Callable[[], tuple[float, ...]]]
    ) -> dict[K, list[list[float]]]:
        """Rates by contender, one list per clock. A run handles `messages` and returns the seconds of each clock."""
        rates: dict[K, list[list[float]]] = {}
        for _ in range(self.count):
            spent: dict[K, list[tuple[float, ...]]] = {name: [] for name in contenders}
            for run in range(self.runs):
                # Every second time in reverse order, so that no contender always runs after the same one.
                for name in contenders if run % 2 == 0 else reversed(list(contenders)):
                    spent[name].append(contenders[name]())
            for name, timings in spent.items():
                for clock, times in enumerate(zip(*timings, strict=True)):
                    rates.setdefault(name, [[] for _ in timings[0]])[clock].append(messages * self.runs / sum(times))
        return rates


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, beginning with a tidy heap."""
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
