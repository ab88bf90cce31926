"""Every state that the memory store can reach in a FIFO box, from small numbers of messages, workers and topics.

Run with `-s` to see how many states and transitions there were. POSTROOM_CHAOS raises the bounds.
"""

from __future__ import annotations

import pytest

from tests.exploration.scenes import SCENES


@pytest.mark.parametrize("name", SCENES)
def test_every_state_keeps_the_rules(name: str) -> None:
    exploration = SCENES[name].explore()
    print(f"\n{exploration}")  # noqa: T201 - how far the search went
    assert not exploration.violations, "\n".join(map(str, exploration.violations))
