"""What ran once and died was tried once; what could not run was not tried."""

from __future__ import annotations

from typing import Any

import pytest

from postroom import Message, Outcome, OwnerToken, Postroom, State
from postroom.cli.dead.formatting import lines
from tests.scenarios.support import put


async def died(box: Any) -> tuple[State, int, str]:
    letter = await box.get("1")
    return letter.state, letter.attempt, lines([letter]).partition("UTC, ")[2].partition(":")[0]


@pytest.mark.parametrize("batch", [None, 5])
async def test_an_execution_that_ends_as_dead_counts(still: Postroom, batch: int | None) -> None:
    box = still.inbox()
    box.handler("t", batch=batch)(lambda _: Outcome.DEAD)
    await put(box, 1)
    await still.drain()
    assert await died(box) == (State.DEAD, 1, "tried once")


@pytest.mark.parametrize("topic", ["typed", "unhandled"])
async def test_what_could_not_run_does_not(still: Postroom, topic: str) -> None:
    box = still.inbox(on_undecodable="dead", on_unhandled="dead")

    @box.handler("typed")
    async def typed(message: Message[int]) -> None: ...

    await put(box, 1, topic=topic)
    await still.drain()
    assert await died(box) == (State.DEAD, 0, "claimed once")


async def test_a_verb_does_not(still: Postroom) -> None:
    box = still.inbox()
    await put(box, 1)
    owner = OwnerToken.new()
    await box.fail(owner, await box.claim(owner), "no")
    assert await died(box) == (State.DEAD, 0, "claimed once")


async def test_without_a_claim(still: Postroom) -> None:
    box = still.inbox()
    await put(box, 1)
    await box.mark_dead("1", "s")
    assert await died(box) == (State.DEAD, 0, "not tried")
