"""Some pairs of verbs at one join on PostgreSQL, in every order with at most two switches between them.

tests/postgres_chaos/test_join_interleavings.py has all pairs, and more switches.
"""

from __future__ import annotations

import pytest

from tests.postgres import shared_database
from tests.postgres_chaos.explorer import sandbox
from tests.postgres_chaos.join_scenes import explore


@pytest.mark.store("postgres")
@pytest.mark.req("OBX-028", "C-36")
@pytest.mark.parametrize(
    ("state", "first", "second"),
    [
        ("watched", "done A", "done B"),
        ("one_left", "claim", "done B"),
        ("unfilled_awake", "attach B", "claim"),
        ("two_joins", "dead A, done D", "dead C, done B"),
    ],
)
async def test_the_continuation_is_claimed_once_after_all_steps(state: str, first: str, second: str) -> None:
    async with sandbox(shared_database(), 2) as scene:
        assert await explore(scene, state, first, second, switches=2) > 1
