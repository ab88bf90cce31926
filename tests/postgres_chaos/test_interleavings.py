"""Two verbs on one FIFO group, statement by statement, in every order.

In every order: no claimable message is left without a time, no group has two holders, no message is overtaken, no claim
is given twice, there is no deadlock; and when leases have ended, everything is handled, in order.

POSTROOM_CHAOS=10 explores more: other pairs, more switches, and more sets of three.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import pytest

from postroom.spi import Retention
from tests.postgres import shared_database
from tests.postgres_chaos.explorer import RandomSchedule, Run, Sandbox, sandbox, schedules
from tests.postgres_chaos.scenes import PLAYS, STATES, Template, World, box_of, complaints

CHAOS = int(os.environ.get("POSTROOM_CHAOS", "1"))
TURNS = 2 if CHAOS == 1 else 3
CROWDS = 120 * CHAOS

PAIRS = """
pair_held       | done 1         | record 2
pair_held       | done 1         | record 2 rolled back
pair_held       | done 1         | mark 2 processing
pair_held       | done 1         | put again 1
pair_held       | done 1         | put again 2 in tx
pair_held       | done 1         | put again 2 rolled back
pair_held       | done 1         | put again 2 rejected
pair_held       | done 1         | put due
pair_held       | dead 1         | put again 1
pair_held       | exchange 1     | mark 2 dead rolled back
pair_held       | done 1         | put again 1 refused
pair_held       | done 1         | put again 1 refused in tx
pair_held       | dead 1         | put again 1 refused
pair_held       | put again 1    | put again 2, 1 refused
pair_free       | claim all      | put again 1 refused
pair_late       | claim all      | done 1
pair_late       | claim all      | dead 1
pair_late       | claim all      | mark 1 processed
pair_late       | claim all      | renew
pair_late       | claim all      | reap
pair_late       | claim all      | put again 2 rolled back
alone_free      | claim all      | put new
alone_free      | claim all      | put new in tx
pair_free       | claim all      | claim all
pair_free       | claim all      | mark 1 dead
pair_free       | claim all      | record 1
pair_free       | claim all      | put again 1 due
pair_free       | claim one      | put again 1 due in tx
pair_free       | put again 2    | put again 2
alone_held      | done 1         | put new
alone_held      | done 1         | put new in tx
alone_held      | release 1      | put again 0, new
alone_held      | retry 1        | put new
held_with_stale_time | claim all      | done 1
held_with_stale_time | claim all      | dead 1
held_with_stale_time | claim all      | release 1
held_with_stale_time | claim all      | retry 1
held_with_stale_time | claim all      | mark 2 processed
two_topics      | claim b        | mark 1 processed
two_topics      | claim b        | put again 1 due
two_topics      | claim b        | claim all
two_late        | claim one      | done 2
two_late        | claim one      | done 1+2
two_late        | claim one      | renew
two_late        | claim all      | exchange 1
two_held        | done 1         | release 2
waits_for_retry | claim all      | put again 1 due
waits_for_retry | mark 1 dead    | put new
one_not_due     | claim all      | put again 1
one_done        | done 1         | put again 0, new
held_with_stale_time | claim all      | renew
held_with_stale_time | renew          | put again 1 in tx
held_with_stale_time | renew          | reap
alone_held      | renew          | put again 1
alone_held      | renew          | put again 1 rolled back
two_late        | renew          | reap
two_held        | renew          | claim all
collapsible_retry        | claim all | put collapse
collapsible_retry        | claim all | put collapse in tx
collapsible_retry        | claim b   | put collapse
collapsible_retry        | mark 2 dead rolled back | put collapse
collapsible_retry        | mark 1 dead rolled back | put collapse
collapsible_behind_retry | claim all | put collapse
collapsible_behind_retry | claim all | put collapse in tx
collapsible_behind_retry | record 2 rolled back | put collapse
collapsible_behind_held  | claim all | put collapse
collapsible_behind_held  | claim all | put collapse in tx
collapsible_behind_held  | claim all | renew
collapsible_behind_held  | done 1    | put collapse
collapsible_behind_held  | exchange 1 | put collapse
collapsible_behind_held  | reap      | put collapse
alone_free      | claim all      | cancel 1
alone_free      | cancel 1       | put new
alone_free      | cancel 1       | put new in tx
alone_free      | cancel 1       | put again 1
alone_free      | cancel 1       | put again 1 due in tx
alone_free      | cancel 1       | put again 1 refused
alone_free      | cancel 1       | cancel 1
alone_free      | cancel 1       | mark 1 processed
alone_free      | cancel 1       | mark 1 dead rolled back
alone_free      | cancel 1       | record 1 rolled back
pair_free       | claim all      | cancel 1
pair_free       | claim all      | cancel 2
pair_free       | claim all      | cancel all
pair_free       | claim all      | cancel 1 rolled back
pair_free       | claim one      | cancel 1 in tx
pair_free       | cancel 2+1     | cancel all
pair_free       | cancel 2+1     | put again 2, new
pair_free       | cancel 1       | mark 2 dead rolled back
pair_held       | done 1         | cancel 2
pair_held       | done 1         | cancel all in tx
pair_held       | release 1      | cancel 1
pair_held       | retry 1        | cancel all
pair_held       | renew          | cancel 2
pair_late       | claim all      | cancel 2
pair_late       | reap           | cancel all
held_with_stale_time | claim all      | cancel 2
held_with_stale_time | done 1         | cancel 2
waits_for_retry | claim all      | cancel 1
waits_for_retry | cancel 1       | cancel 2
waits_for_retry | cancel 1       | put new
waits_for_retry | cancel 1       | put again 1 due
waits_for_retry | cancel 1 in tx | put new
waits_for_retry | cancel 1 rolled back | claim all
waits_for_retry | cancel 1       | record 2 rolled back
one_not_due     | cancel 1       | claim all
one_not_due     | cancel 1       | put again 1
collapsible_retry        | cancel 1 | put collapse
collapsible_retry        | cancel 1 rolled back | put collapse
collapsible_retry        | cancel all | put collapse in tx
collapsible_behind_held  | cancel 2 | put collapse
collapsible_behind_held  | done 1   | cancel 2
"""
TOPICAL = """
two_topics               | claim a   | claim b
two_topics               | claim b   | claim b
two_topics               | claim b   | reap
two_topics               | claim b   | mark 1 processed
two_topics               | claim b   | cancel 1
two_topics               | claim a   | cancel 1
two_topics               | claim b   | cancel all
due_ahead_of_holder      | claim b   | cancel 1
due_ahead_of_late        | claim b   | cancel 1
due_ahead_of_holder      | done 2    | cancel 1
due_ahead_of_holder      | claim a   | claim b
due_ahead_of_holder      | claim a   | claim a
due_ahead_of_holder      | claim a   | renew
due_ahead_of_holder      | claim b   | renew
due_ahead_of_holder      | claim a   | reap
due_ahead_of_holder      | claim a   | done 2
due_ahead_of_holder      | claim a   | release 2
due_ahead_of_holder      | claim a   | retry 2
due_ahead_of_holder      | claim a   | dead 2
due_ahead_of_holder      | claim b   | put new
due_ahead_of_late        | claim a   | claim b
due_ahead_of_late        | claim a   | renew
due_ahead_of_late        | claim b   | renew
due_ahead_of_late        | claim a   | reap
due_ahead_of_late        | claim b   | reap
due_ahead_of_late        | claim a   | done 2
due_ahead_of_late        | claim b   | done 2
asleep_ahead_of_holder   | claim b   | renew
asleep_ahead_of_holder   | claim a   | done 2
asleep_ahead_of_holder   | claim b   | release 2
asleep_ahead_of_holder   | claim b   | put new
asleep_ahead_of_late     | claim a   | claim b
asleep_ahead_of_late     | claim b   | claim b
asleep_ahead_of_late     | claim a   | reap
asleep_ahead_of_late     | claim b   | reap
asleep_ahead_of_late     | claim b   | renew
asleep_ahead_of_late     | claim b   | done 2
replayed_ahead_of_holder | claim a   | claim b
replayed_ahead_of_holder | claim a   | renew
replayed_ahead_of_holder | claim a   | done 2
replayed_ahead_of_holder | claim a   | reap
due_behind_holder        | claim a   | claim b
due_behind_holder        | claim b   | done 1
due_behind_holder        | claim b   | renew
due_behind_late          | claim a   | claim b
due_behind_late          | claim b   | renew
due_behind_late          | claim b   | reap
due_behind_late          | claim b   | done 1
"""
BLOCKED = """
one_dead        | replay         | put new
one_dead        | purge dead     | put new in tx
one_dead        | mark 1 skipped | put new
one_dead        | mark 1 skipped | claim all
one_dead        | replay         | claim all
one_dead        | purge dead     | record 2
one_dead        | revive         | claim all
one_dead        | replay         | cancel 1
one_dead        | replay         | cancel 2
one_dead        | mark 1 skipped | cancel 2
"""
FORGETFUL = """
pair_held       | done 1         | put again 1
pair_held       | dead 1         | put again 1
pair_held       | done 1         | mark 1 processed
alone_free      | cancel 1       | put again 1
alone_free      | cancel 1       | mark 1 processed
pair_free       | cancel 2+1     | cancel all
one_dead        | purge dead     | put again 1
one_dead        | purge dead     | put again 1 refused
one_dead        | purge dead     | record 1
one_done        | purge done     | put again 0, new
"""


def parsed(table: str) -> list[list[str]]:
    return [[part.strip() for part in line.split("|")] for line in table.strip().splitlines()]


@pytest.fixture
async def scene() -> AsyncIterator[Sandbox]:
    async with sandbox(shared_database(), 3) as made:
        yield made


async def check(world: World, run: Run, topics: Sequence[str | None] = (None,)) -> None:
    wrong = await complaints(world, run, topics=topics)
    assert not wrong, f"{[actor.play.name for actor in run.actors]} {run}: {'; '.join(wrong)}"


async def explore(
    scene: Sandbox, state: str, first: str, second: str, *, topics: Sequence[str | None] = (None,), **options: Any
) -> None:
    template = await Template.of(scene, STATES[state], box_of(secrets.token_hex(8), **options))
    runs = 0
    for schedule in schedules(TURNS):
        world = await template.copy()
        plays = [made for name in (first, second) if (made := PLAYS[name](world)) is not None]
        assert len(plays) == 2, "this state has nothing for that verb"
        await check(world, await scene.run(plays, schedule), topics)
        runs += 1
    assert runs > 2  # they did meet


@pytest.mark.parametrize(("state", "first", "second"), parsed(PAIRS))
async def test_every_order_of_two_verbs(scene: Sandbox, state: str, first: str, second: str) -> None:
    await explore(scene, state, first, second)


@pytest.mark.parametrize("topics", [("a", "b"), ("b", "a")], ids=["a first", "b first"])
@pytest.mark.parametrize(("state", "first", "second"), parsed(TOPICAL))
async def test_every_order_where_workers_claim_by_topic(
    scene: Sandbox, state: str, first: str, second: str, topics: tuple[str, str]
) -> None:
    """In the end, workers of one topic each drain the group in turn."""
    await explore(scene, state, first, second, topics=topics)


@pytest.mark.parametrize(("state", "first", "second"), parsed(BLOCKED))
async def test_every_order_where_a_dead_letter_blocks_its_group(
    scene: Sandbox, state: str, first: str, second: str
) -> None:
    await explore(scene, state, first, second, on_dead="block")


@pytest.mark.parametrize(("state", "first", "second"), parsed(FORGETFUL))
async def test_every_order_where_content_is_removed(scene: Sandbox, state: str, first: str, second: str) -> None:
    """The content is in another table than the queue: a verb that needs both must lock them in one order."""
    discard: Literal["keep", "discard"] = "keep" if state == "one_dead" else "discard"
    await explore(scene, state, first, second, retention=Retention(on_success="delete", dead_letter=discard))


async def test_crowds_of_three_in_random_orders(scene: Sandbox) -> None:
    seed = int(os.environ.get("POSTROOM_SEED", "1"))
    templates: dict[tuple[str, str], Template] = {}
    for number in range(CROWDS):
        chance = random.Random(f"{seed} {number}")
        state, on_dead = chance.choice(list(STATES)), chance.choice(("unblock", "block"))
        if (state, on_dead) not in templates:
            box = box_of(secrets.token_hex(8), on_dead=on_dead)
            templates[state, on_dead] = await Template.of(scene, STATES[state], box)
        world = await templates[state, on_dead].copy()
        possible = [made for make in PLAYS.values() if (made := make(world)) is not None]
        run = await scene.run(chance.sample(possible, 3), RandomSchedule(chance))
        # Three may well deadlock, where callers choose the order of their locks; then PostgreSQL ends one of them.
        wrong = [complaint for complaint in await complaints(world, run) if "deadlock" not in complaint]
        names = [actor.play.name for actor in run.actors]
        assert not wrong, f"number {number} of seed {seed}: {state}, {on_dead}, {names}, {run}: {'; '.join(wrong)}"
