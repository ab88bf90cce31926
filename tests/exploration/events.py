"""What can happen in a world. A worker that crashes is a worker to which nothing happens any more: its lease ends as
time passes, so a crash needs no event of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from postroom.spi import State
from tests.exploration.world import DELAY, DUE, OWNERS, TOPICS, Snapshot, World

Put = Literal["now", "due", "collapse"]
COLLAPSE_KEY = "k"
ALL = 9


class Event(Protocol):
    """Something that happens; its outcome can be compared with that in another store."""

    def happen(self, world: World) -> Any: ...


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A put, of a new message or of one that is known."""

    name: str
    topic: str
    how: Put = "now"

    def happen(self, world: World) -> Any:
        key = COLLAPSE_KEY if self.how == "collapse" else None
        return world.put(self.name, self.topic, DUE if self.how == "due" else None, key)

    def __str__(self) -> str:
        return f"put {self.name} topic {self.topic}" + ("" if self.how == "now" else f" {self.how}")


@dataclass(frozen=True, slots=True)
class TimePasses:
    """Until the next moment at which a due time, a delay or a lease ends."""

    by: timedelta

    def happen(self, world: World) -> Any:
        world.clock.advance(self.by)

    def __str__(self) -> str:
        return f"{self.by.total_seconds():g} s pass"


@dataclass(frozen=True, slots=True)
class ClaimSome:
    worker: str
    topic: str | None
    limit: int

    def happen(self, world: World) -> Any:
        return sorted(world.claim(self.worker, None if self.topic is None else {self.topic}, self.limit))

    def __str__(self) -> str:
        return f"{self.worker} claims {self.topic or 'any'} ({'all' if self.limit == ALL else self.limit})"


@dataclass(frozen=True, slots=True)
class Settle:
    """Its worker reports one message; the lease may have ended meanwhile."""

    name: str
    verdict: str
    delayed: bool = False

    def happen(self, world: World) -> Any:
        return world.settle([self.name], [self.verdict], DELAY if self.delayed else None)

    def __str__(self) -> str:
        return f"{self.verdict} {self.name}" + (" with a delay" if self.delayed else "")


@dataclass(frozen=True, slots=True)
class SettleBatch:
    """Its worker reports several messages at once: the first with the given outcome, the others as done."""

    names: tuple[str, ...]
    verdict: str

    def happen(self, world: World) -> Any:
        return world.settle(self.names, [self.verdict] + ["done"] * (len(self.names) - 1))

    def __str__(self) -> str:
        return f"{self.verdict} {self.names[0]} and done {' '.join(self.names[1:])} at once"


@dataclass(frozen=True, slots=True)
class Renew:
    worker: str

    def happen(self, world: World) -> Any:
        return sum(world.renew(self.worker))

    def __str__(self) -> str:
        return f"{self.worker} renews"


@dataclass(frozen=True, slots=True)
class Reap:
    def happen(self, world: World) -> Any:
        return world.reap()

    def __str__(self) -> str:
        return "reap"


@dataclass(frozen=True, slots=True)
class Replay:
    name: str

    def happen(self, world: World) -> Any:
        return world.replay(self.name)

    def __str__(self) -> str:
        return f"replay {self.name}"


@dataclass(frozen=True, slots=True)
class MarkOne:
    name: str
    mark: str

    def happen(self, world: World) -> Any:
        return world.mark(self.name, self.mark)

    def __str__(self) -> str:
        return f"mark {self.name} {self.mark}"


@dataclass(frozen=True, slots=True)
class Cancel:
    name: str

    def happen(self, world: World) -> Any:
        return world.cancel(self.name)

    def __str__(self) -> str:
        return f"cancel {self.name}"


@dataclass(frozen=True)
class Vocabulary:
    """Which events are tried, in which number."""

    groups: str = "gh"
    messages: int = 3
    """In each group."""
    puts: tuple[Put, ...] = ("now", "due", "collapse")
    limits: tuple[int, ...] = (1, ALL)
    again: tuple[Put, ...] = ()
    """How a message that waits is put again; with each topic."""
    marks: tuple[str, ...] = ()
    """Beside `skipped`: what is marked without a claim."""
    cancels: bool = False
    verdicts: tuple[tuple[str, bool], ...] = (
        ("done", False),
        ("retry", False),
        ("retry", True),
        ("release", False),
        ("dead", False),
    )
    batches: tuple[str, ...] = ()
    """Verdicts on the first of several messages that are settled at once."""

    def possible(self, world: World, next_moment: timedelta | None) -> Iterator[Event]:
        """Every event that can happen and may change something."""
        messages = world.look()
        yield from self._puts(messages)
        if next_moment is not None:
            yield TimePasses(next_moment)
        if any(message.state in {State.WAITING, State.CLAIMED} for message in messages.values()):
            yield from self._claims(messages)
        yield from self._outcomes(messages)
        yield from self._from_outside(world, messages)

    def _puts(self, messages: Snapshot) -> Iterator[Event]:
        for group in self.groups:
            number = sum(name[0] == group for name in messages) + 1
            if number <= self.messages:
                for topic in TOPICS if messages else TOPICS[:1]:
                    for how in self.puts:
                        yield Enqueue(f"{group}{number}", topic, how)
            if number == 1:
                break  # a group without messages is like any other
        for name, message in messages.items():
            if message.state is State.WAITING:
                for how in self.again:
                    for topic in TOPICS:
                        yield Enqueue(name, topic, how)

    def _claims(self, messages: Snapshot) -> Iterator[Event]:
        idle = all(message.claim is None for message in messages.values())
        for worker in list(OWNERS)[:1] if idle else OWNERS:  # two workers with nothing in hand are alike
            for topic in (None, *TOPICS):
                for limit in self.limits:
                    yield ClaimSome(worker, topic, limit)

    def _outcomes(self, messages: Snapshot) -> Iterator[Event]:
        for name, message in messages.items():
            if message.claim is not None:
                for verdict, delayed in self.verdicts:
                    yield Settle(name, verdict, delayed)
        for worker, owner in OWNERS.items():
            held = [n for n, m in messages.items() if m.claim is not None and m.claim.owner == owner]
            if held:
                yield Renew(worker)
            if len(held) > 1:
                for verdict in self.batches:
                    yield SettleBatch(tuple(held), verdict)

    def _from_outside(self, world: World, messages: Snapshot) -> Iterator[Event]:
        if any(message.claim is not None and not world.is_live(message) for message in messages.values()):
            yield Reap()
        blocking = world.blocking()
        for name, message in messages.items():
            if message.state is State.DEAD:
                yield Replay(name)
            if name in blocking:
                yield MarkOne(name, "skipped")
            if message.state in {State.WAITING, State.CLAIMED}:
                for mark in self.marks:
                    yield MarkOne(name, mark)
            if self.cancels and message.state is State.WAITING:
                yield Cancel(name)
