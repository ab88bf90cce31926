"""How much is measured: sized so that a run takes from a tenth of a second to a few seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.rounds import Rounds

BULK = 1_000
TASKS = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    name: str
    rounds: Rounds
    share: float
    """The part of the messages of a full run that this plan uses."""
    messages_per_measurement: Mapping[str, Mapping[str, int]]
    """Messages of one measurement in a full run, by case and contender."""
    takes: Mapping[str, tuple[int, ...]]
    """Which batch sizes each contender takes."""
    batches: tuple[int, ...]
    batch: int
    """Of the cases that do not vary it."""
    fewer: Mapping[int, int] = field(default_factory=dict)
    """By how much fewer messages are drained in a run, by batch size: small batches take longer."""
    pairs: tuple[Rounds, tuple[str, ...]]
    """Rounds, and their contenders."""
    latencies: tuple[int, int]
    """Rounds, and messages per round."""
    groups: tuple[int, ...]
    ordered: tuple[int, int]
    """Messages that wait all the time, and messages per run."""
    levels: tuple[int, ...]
    slices: tuple[Rounds, int]
    """Rounds, and messages per run."""

    def messages(self, case: str, name: str) -> int:
        return max(100, int(self.messages_per_measurement[case][name] * self.share))
