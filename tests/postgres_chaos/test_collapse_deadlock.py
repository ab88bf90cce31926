"""A put that collapses waits for rows; what it meets must not wait for it in turn."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import pytest

from postroom._stores.sql.statements import SqlProgram
from postroom.spi import ClaimRequest, Retention, Settlement
from tests.postgres import shared_database
from tests.postgres_chaos.explorer import Play, sandbox, schedules
from tests.postgres_chaos.scenes import BOB, HOUR, MINUTE, State_, Template, World, box_of, draft


async def expired_beside_collapsible(world: World) -> None:
    await world.put("r", group="r", collapse_key="price")
    await world.put("y", group="y")
    await world.put("X", group="x", expires=world.sandbox.clock.now() + MINUTE)
    world.sandbox.clock.advance(HOUR)


async def collapsible_behind_held(world: World) -> None:
    await world.put("1", group="g")
    await world.put("2", group="g", collapse_key="price")
    await world.hold(1)


def put_known_then_collapse(world: World) -> SqlProgram[Any]:
    yield from world.queue.put(world.box, [draft("X", group="x")], in_caller_tx=True)
    return (yield from world.queue.put(world.box, [draft("n", group="r", collapse_key="price")], in_caller_tx=True))


def ack_then_collapse(world: World) -> SqlProgram[Any]:
    yield from world.queue.settle(world.box, [Settlement.done(world.claims["1"])])
    return (yield from world.queue.put(world.box, [draft("m", group="h", collapse_key="price")], in_caller_tx=True))


def claim(world: World) -> SqlProgram[Any]:
    return (yield from world.queue.claim(world.box, ClaimRequest(BOB, HOUR, 10)))


def collapse(world: World) -> SqlProgram[Any]:
    return (yield from world.queue.put(world.box, [draft("n", group="h", collapse_key="price")]))


@pytest.mark.parametrize(
    ("state", "caller", "other"),
    [
        (expired_beside_collapsible, put_known_then_collapse, claim),
        (collapsible_behind_held, ack_then_collapse, collapse),
    ],
    ids=["claim that discards", "producer"],
)
async def test_a_callers_transaction_does_not_deadlock(state: State_, caller: Any, other: Any) -> None:
    async with sandbox(shared_database(), 2) as scene:
        box = box_of(secrets.token_hex(8), retention=Retention(dead_letter="discard"))
        template = await Template.of(scene, state, box)
        for schedule in schedules(3):
            world = await template.copy()
            plays = [
                Play("caller", partial(caller, world), callers=True),
                Play("other", partial(other, world)),
            ]
            run = await scene.run(plays, schedule)
            assert not run.deadlocks, str(run)
            assert [actor.error for actor in run.actors] == [None, None], str(run)
