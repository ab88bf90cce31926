"""Nothing is stuck: what can be claimed by the rules is claimed by a worker of its topic, without outside help.

Each check uses its world up: it goes on from a copy of a state, or from the end of a history.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from postroom.spi import State
from tests.exploration.events import ALL
from tests.exploration.world import TOPICS, World, require

LONG = timedelta(seconds=1000)
"""All due times, delays and leases have ended by then."""


def claimable(world: World) -> set[str]:
    """What may be claimed now: the front of each group that no worker holds."""
    fronts: set[str] = set()
    for line in world.lines().values():
        first = line[0]
        if not any(map(world.is_live, line)) and first.state is not State.DEAD and world.is_ready(first):
            fronts.add(first.message_id)
    return fronts


def check_at_once(world: World, topics: tuple[str, ...] = TOPICS) -> None:
    """A worker of each topic receives at once what may be claimed."""
    limited = world.box.delivery.max_deliveries
    for worker, topic in zip("ab", topics, strict=True):
        before = world.look()
        expected = {name for name in claimable(world) if before[name].topic == topic}
        if limited is not None:
            expected = {name for name in expected if before[name].deliveries < limited}
        received: set[str] = set()
        while names := world.claim(worker, {topic}, ALL):  # a message that keeps losing its lease comes alone
            received.update(names)
        missing = expected - received
        require(not missing, f"{sorted(missing)} can be claimed, but a worker of topic {topic} does not receive it")


def lapse(world: World) -> None:
    """Every worker has crashed, and every time has come."""
    world.clock.advance(LONG)


def drain(world: World, topics: tuple[str, ...] = TOPICS, limit: int = 1, *, reap: bool = False) -> None:
    """Two workers, one of each topic, handle in turn all that is left, except what a dead letter blocks."""
    handled: list[str] = []
    idle = 0
    while idle < 2 * len(topics):
        for worker, topic in zip("ab", topics, strict=True):
            if reap:
                world.reap()
            names = world.claim(worker, {topic}, limit)
            if names:
                require(all(world.settle(names, ["done"] * len(names))), f"the outcome of one of {names} was lost")
            handled += names
            idle = 0 if names else idle + 1
    for line in world.lines().values():
        names = [message.message_id for message in line]
        require(line[0].state is State.DEAD, f"{names} is stuck after {handled} were handled")


DRAINS: tuple[Callable[[World], None], ...] = (
    drain,
    partial(drain, topics=TOPICS[::-1], limit=ALL),
    partial(drain, topics=TOPICS[::-1], reap=True),
)
"""Ways to go on when every time has come; each must end well."""
