"""Breadth-first through every state that the memory store can reach."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from postroom.spi import Box
from tests.exploration.events import Event, Vocabulary
from tests.exploration.liveness import DRAINS, check_at_once, lapse
from tests.exploration.state import fork, new_world, next_moment, state_of
from tests.exploration.world import TOPICS, Violation, World

ENOUGH = 5
"""So many violations are reported: the shortest sequences come first."""


class Node(NamedTuple):
    """A state, with the event that led to it first."""

    parent: Node | None
    event: Event | None
    depth: int

    def path(self) -> list[Event]:
        if self.parent is None or self.event is None:
            return []
        return [*self.parent.path(), self.event]


class Found(NamedTuple):
    """A rule that does not hold, after the shortest sequence of events."""

    path: list[Event]
    complaint: str

    def __str__(self) -> str:
        return f"{'; '.join(map(str, self.path))}: {self.complaint}"


@dataclass
class Exploration:
    """What a search has seen."""

    box: Box
    vocabulary: Vocabulary
    nodes: list[Node] = field(default_factory=list)
    """One for each state, in the order in which they were reached."""
    transitions: int = 0
    depth: int = 0
    complete: bool = False
    """Whether every reachable state was seen, without a bound."""
    violations: list[Found] = field(default_factory=list)

    def __str__(self) -> str:
        vocabulary = self.vocabulary
        extent = "every reachable state" if self.complete else "bounded"
        return (
            f"{self.box.name}, {len(vocabulary.groups)} x {vocabulary.messages} messages: {len(self.nodes)} states, "
            f"{self.transitions} transitions, depth {self.depth} ({extent}), {len(self.violations)} violations"
        )


def explore(
    box: Box,
    vocabulary: Vocabulary,
    *,
    depth: int = 1000,
    states: int = 1_000_000,
    violations: int = ENOUGH,
    liveness: bool = True,
) -> Exploration:
    """Every state that can be reached in so many events, until so many states or violations were found.

    Without `liveness`, only what each event promises is checked: that is faster, where only the sequences are needed.
    """
    result = Exploration(box, vocabulary)
    start = new_world(box)
    layer = [(Node(None, None, 0), start)]
    seen: set[Hashable] = {state_of(start)}
    drained: set[Hashable] = set()
    while layer and result.depth < depth:
        result.depth += 1
        following: list[tuple[Node, World]] = []
        for node, world in layer:
            for event, after in _steps(result, node, world):
                key = state_of(after)
                if key in seen:
                    continue
                seen.add(key)
                reached = Node(node, event, node.depth + 1)
                result.nodes.append(reached)
                if not liveness or _is_live(result, reached, after, drained):
                    following.append((reached, after))
                if len(result.nodes) >= states or len(result.violations) >= violations:
                    return result
        layer = following
    result.complete = not layer
    return result


def _steps(result: Exploration, node: Node, world: World) -> Iterator[tuple[Event, World]]:
    for event in result.vocabulary.possible(world, next_moment(world)):
        after = fork(world)
        result.transitions += 1
        try:
            event.happen(after)
        except Violation as violation:
            result.violations.append(Found([*node.path(), event], str(violation)))
        else:
            yield event, after


def _is_live(result: Exploration, node: Node, world: World, drained: set[Hashable]) -> bool:
    try:
        _check_stale_claims(fork(world))
        _check_drains(fork(world), drained)
        for topics in (TOPICS, TOPICS[::-1]):
            served = fork(world)
            check_at_once(served, topics)
            _check_drains(served, drained)
    except Violation as violation:
        result.violations.append(Found(node.path(), str(violation)))
        return False
    return True


def _check_stale_claims(world: World) -> None:
    before = state_of(world)
    world.check_stale_claims()
    if state_of(world) != before:
        raise Violation("a stale claim changed something")


def _check_drains(world: World, drained: set[Hashable]) -> None:
    """Most states become the same when every time has come: each of these is tried once."""
    lapse(world)
    state = state_of(world)
    if state not in drained:
        for goes_on in DRAINS:
            goes_on(fork(world))
        drained.add(state)
