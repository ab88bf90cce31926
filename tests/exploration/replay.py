"""Sequences that were found on the memory store, on another store: the same rules hold there.

Which group of several comes first is a store's own choice. Until a store could have chosen, each outcome and the state
of each message are those of the memory store.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from postroom.spi import Box
from postroom.testing import FrozenClock
from tests.exploration.events import ALL, ClaimSome, Event
from tests.exploration.liveness import DRAINS, check_at_once, lapse
from tests.exploration.search import Exploration, Found
from tests.exploration.state import fork, new_world, state_of
from tests.exploration.world import TOPICS, Violation, World, require

SEED = 5
Sequences = Iterable[tuple[Box, list[Event]]]


def sample(exploration: Exploration, count: int) -> Iterator[tuple[Box, list[Event]]]:
    """The shortest sequences to so many states of a search, or to all."""
    nodes = exploration.nodes
    for node in nodes if count >= len(nodes) else random.Random(SEED).sample(nodes, count):
        yield exploration.box, node.path()


def violations(store: Any, clock: FrozenClock, sequences: Sequences, *, enough: int = 3) -> list[Found]:
    """What does not hold on a store after one of the sequences."""
    found: list[Found] = []
    for number, (box, path) in enumerate(sequences):
        try:
            replay(World(store, clock, replace(box, name=f"{box.name}-{secrets.token_hex(6)}")), path, number)
        except Violation as violation:
            found.append(Found(path, str(violation)))
            if len(found) == enough:
                break
    return found


def replay(world: World, path: list[Event], number: int) -> None:
    """Let the events happen, and then go on in one of several ways.

    In two of three sequences idle workers poll after each event. On the memory store such a claim changes nothing, so
    the shortest sequences do not contain it; on another store it must change nothing either.
    """
    model: World | None = new_world(world.box)
    for event in path:
        outcome = event.happen(world)
        if model is not None and _has_choice(model, event):
            model = None
        if model is not None:
            _compare(world, model, event, outcome)
            if number % 3:
                _poll(world, model)
    world.check_stale_claims()
    if number % 2:
        check_at_once(world, TOPICS if number % 4 == 1 else TOPICS[::-1])
    lapse(world)
    DRAINS[number % len(DRAINS)](world)


def _has_choice(model: World, event: Event) -> bool:
    several = len({name[0] for name in model.look()}) > 1
    return several and isinstance(event, ClaimSome) and event.limit < ALL


def _poll(world: World, model: World) -> None:
    before = state_of(model)
    for topic in (None, *TOPICS):
        claim, idle = ClaimSome("a", topic, ALL), fork(model)
        if not claim.happen(idle) and state_of(idle) == before:
            _compare(world, model, claim, claim.happen(world))


def _compare(world: World, model: World, event: Event, outcome: Any) -> None:
    expected = event.happen(model)
    require(outcome == expected, f"{event} has the outcome {outcome}, not {expected}")
    states = {name: message.state for name, message in world.look().items()}
    expected_states = {name: message.state for name, message in model.look().items()}
    require(states == expected_states, f"after {event} the states are {states}, not {expected_states}")
