"""Which searches are made. POSTROOM_CHAOS makes them long."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from postroom.spi import Box
from tests.exploration.events import Vocabulary
from tests.exploration.search import Exploration, explore
from tests.exploration.world import BLOCK, BLOCK_LIMITED, UNBLOCK, UNBLOCK_LIMITED

ALL_OF_THEM = 1_000_000
"""No bound: the search ends when it has seen every reachable state."""
LONG = bool(os.environ.get("POSTROOM_CHAOS"))


class Scene(NamedTuple):
    """A search with its bounds: so many states in a short run, and so many in a long one."""

    box: Box
    vocabulary: Vocabulary
    short: int
    long: int

    def explore(self) -> Exploration:
        return explore(self.box, self.vocabulary, states=self.long if LONG else self.short)

    def sequences(self) -> Exploration:
        """The same search, without the checks that take most of the time."""
        states = self.long if LONG else self.short
        return explore(self.box, self.vocabulary, states=states, violations=states, liveness=False)


EVERYTHING: dict[str, Any] = {
    "again": ("now", "due"),
    "marks": ("dead", "processed"),
    "cancels": True,
    "batches": ("done", "retry", "dead"),
}
FEW_VERDICTS = (("done", False), ("retry", True), ("dead", False))
ONE = Vocabulary("g", 2)
ONE_WITH_EVERYTHING = Vocabulary("g", 2, **EVERYTHING)
THREE = Vocabulary("g", 3, puts=("now", "due"))
TWO_GROUPS = Vocabulary("gh", 2, puts=("now",), verdicts=FEW_VERDICTS)
SIX = Vocabulary("gh", 3, puts=("now", "due"), verdicts=FEW_VERDICTS)

SCENES = {
    "unblock": Scene(UNBLOCK, ONE, 1000, ALL_OF_THEM),
    "block": Scene(BLOCK, ONE, 1000, ALL_OF_THEM),
    "unblock-everything": Scene(UNBLOCK, ONE_WITH_EVERYTHING, 600, 20_000),
    "block-everything": Scene(BLOCK, ONE_WITH_EVERYTHING, 600, 20_000),
    "unblock-limited": Scene(UNBLOCK_LIMITED, ONE_WITH_EVERYTHING, 400, 20_000),
    "block-limited": Scene(BLOCK_LIMITED, ONE_WITH_EVERYTHING, 400, 20_000),
    "unblock-three": Scene(UNBLOCK, THREE, 600, 20_000),
    "block-three": Scene(BLOCK, THREE, 600, 20_000),
    "unblock-two-groups": Scene(UNBLOCK, TWO_GROUPS, 500, 20_000),
    "block-two-groups": Scene(BLOCK, TWO_GROUPS, 500, 20_000),
    "unblock-six": Scene(UNBLOCK, SIX, 300, 20_000),
    "block-six": Scene(BLOCK, SIX, 300, 20_000),
}
