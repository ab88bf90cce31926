"""Two verbs at one join, statement by statement, in every order.

In every order: there is no deadlock; when both have committed and a claim has run, the continuation can be claimed if
and only if no step is pending; and when the other steps have ended one after the other, it was claimed once.

POSTROOM_CHAOS=10 explores orders with more switches.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.postgres import shared_database
from tests.postgres_chaos.explorer import Sandbox, sandbox
from tests.postgres_chaos.join_scenes import explore

CHAOS = int(os.environ.get("POSTROOM_CHAOS", "1"))
SWITCHES = 3 if CHAOS == 1 else 20

PAIRS = """
held                     | done A          | done B
watched                  | done A          | done B
watched                  | exchange A      | done B
watched                  | done A          | dead B
held                     | dead A          | dead B
watched                  | dead A          | dead B
watched                  | done A          | done B rolled back
held                     | claim           | done A+B
watched                  | claim           | done A+B
one_left                 | claim           | done B
one_left                 | claim           | dead B
one_left                 | claim           | exchange B
one_left                 | claim           | retry B
one_left                 | claim           | done B in tx
one_left                 | claim           | done B rolled back
one_left                 | claim           | claim
one_left                 | claim           | mark B processed
one_left                 | claim           | mark B dead
one_left                 | claim           | report B
one_left                 | claim           | report B failed
one_left                 | claim           | cancel join
one_left                 | claim           | purge done
one_left_watched         | claim           | done B
one_left_watched         | exchange B      | claim
one_left_watched         | report B        | done B
one_left_watched         | report B failed | done B
one_left_watched         | report B        | dead B
one_left_watched         | report B        | report B failed
one_left_watched         | cancel join     | done B
one_left_watched         | cancel join     | report B
one_left_watched         | purge done      | done B
held                     | report A        | done B
held                     | report A        | report B
watched                  | report A        | done B
unfilled                 | attach B        | done A
unfilled                 | attach B        | done B
unfilled                 | attach B in tx  | done A+B
unfilled                 | attach B rolled back | done A+B
unfilled                 | attach B        | attach B
unfilled                 | attach B        | claim
unfilled_awake           | attach B        | claim
unfilled_awake           | attach B in tx  | claim
unfilled_last            | attach B        | done B
unfilled_last            | attach B        | dead B
unfilled_last            | attach B        | claim
unfilled_ended           | attach B        | claim
unfilled_ended           | attach B        | purge dead
unfilled_ended           | attach B        | replay
unfilled_ended           | attach B        | cancel join
no_wait                  | wait            | done A+B
no_wait                  | wait            | wait
no_wait                  | wait            | cancel join
no_wait_unfilled         | wait            | attach B
no_wait_unfilled         | wait in tx      | attach B
no_wait_unfilled         | wait            | done B
no_wait_ended            | wait            | attach B
no_wait_ended            | wait            | attach B in tx
dead_awake               | replay          | claim
dead_awake               | purge dead      | claim
dead_awake               | cancel join     | claim
dead_awake               | cancel join     | cancel join
dead_and_held            | replay          | done B
dead_and_held            | replay          | claim
dead_and_held            | purge dead      | done B
dead_and_held            | purge dead      | replay
one_left_waiting         | supersede B     | claim
one_left_waiting         | cancel B        | claim
one_left_waiting         | cancel B        | supersede B
one_left_waiting_watched | supersede B     | claim
one_left_waiting_watched | supersede B     | supersede B
one_left_waiting_watched | cancel B        | supersede B
one_left_waiting_watched | cancel B        | claim
one_left_waiting_watched | report B        | supersede B
one_left_waiting_watched | cancel join     | supersede B
one_left_waiting_watched | mark B processed | claim
two_joins                | dead A, done D  | dead C, done B
two_joins                | dead A+C        | exchange B+D
two_joins                | done A+C        | exchange B+D
open_sleeping            | seal            | done A
open_sleeping            | seal            | put C
open_sleeping            | seal            | put C in tx
open_sleeping            | seal            | claim
open_sleeping            | seal            | cancel join
open_awake               | seal            | claim
open_awake               | seal            | done A
filled                   | done A          | done B
filled                   | exchange B      | done A
filled                   | claim           | done A+B
filled                   | report B        | done A+B
nested                   | claim           | dead A, done B
nested                   | claim           | claim
nested                   | cancel inner join | done A+B
nested                   | cancel inner join | claim
unfilled                 | attach B        | exchange A
unfilled                 | attach B        | exchange B
no_wait                  | wait            | exchange A+B
no_wait                  | wait            | dead A+B
open_awake               | put C in tx     | claim
open_awake               | put C           | put C in tx
"""


def parsed(table: str) -> list[list[str]]:
    return [[part.strip() for part in line.split("|")] for line in table.strip().splitlines()]


@pytest.fixture
async def scene() -> AsyncIterator[Sandbox]:
    async with sandbox(shared_database(), 2) as made:
        yield made


@pytest.mark.parametrize(("state", "first", "second"), parsed(PAIRS))
async def test_every_order_of_two_verbs(scene: Sandbox, state: str, first: str, second: str) -> None:
    orders = await explore(scene, state, first, second, switches=SWITCHES)
    assert orders > 1
    print(f"{orders} orders: {state} | {first} | {second}")  # noqa: T201 - figures


@pytest.mark.req("C-36")
async def test_a_claim_that_ends_an_inner_join_waits_for_no_lock(scene: Sandbox) -> None:
    """The settlement wakes both continuations, the outer one first. The claim has locked the inner one."""
    assert await explore(scene, "nested", "claim", "done A+B", switches=SWITCHES) > 1
