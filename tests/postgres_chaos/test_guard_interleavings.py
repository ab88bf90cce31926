"""Two verbs on the records of a guard, statement by statement, in every order.

In every order, results and records are those of one of the two serial orders, and there is no deadlock.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from postroom.spi import Begin, Begun, Box, Claim, Draft, Filter, Key, Purge, Result, Retention, Settlement, State
from tests.postgres import shared_database
from tests.postgres_chaos.explorer import Play, Run, Sandbox, Schedule, sandbox, schedules

ALICE, BOB, CAROL = UUID(int=1), UUID(int=2), UUID(int=3)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
KEYS = ("1", "2")

FINAL = """
SELECT e.message_id, e.state, e.fence, e.owner, e.deliveries, e.completed_by, e.payload
  FROM postroom_entry e WHERE e.box = $1 ORDER BY e.message_id, e.id
"""


def begin(key: str, owner: UUID, lease: timedelta | None = HOUR) -> Begin:
    return Begin(Draft("charge", key, "t", hash=b"1"), owner, lease)


class World:
    """A guard with two records."""

    def __init__(self, place: Sandbox, state: str) -> None:
        self.place = place
        self.box = Box("guard", secrets.token_hex(8), retention=Retention(age_from="completed_at"))
        self.state = state
        self.claims: dict[str, Claim] = {}
        self.queue: Any = place.driver.engine.make_queue()

    async def prepare(self) -> None:
        if self.state == "new":
            return
        lease = MINUTE if self.state == "late" else None if self.state == "endless" else HOUR
        begun = await self.place.perform(self.queue.begin(self.box, [begin(key, ALICE, lease) for key in KEYS]))
        self.claims = {key: each.claim for key, each in zip(KEYS, begun, strict=True)}
        if self.state == "late":
            self.place.clock.advance(120)
        endings: dict[str, Callable[[Claim], Settlement]] = {
            "released": Settlement.release,
            "done": Settlement.done,
            "dead": lambda claim: Settlement.dead(claim, error="bad"),
        }
        if self.state in endings:
            settlements = [endings[self.state](claim) for claim in self.claims.values()]
            await self.place.perform(self.queue.settle(self.box, settlements))

    def play(self, name: str) -> Play:
        verb, _, rest = name.partition(" ")
        names = rest.split()
        program: Callable[[], Any] = {
            "begin": lambda: self.queue.begin(self.box, [begin(key, _owner(names[0])) for key in names[1:]]),
            "done": lambda: self._settle(names, lambda claim: Settlement.done(claim, Result(b"r", "bytes"))),
            "plain": lambda: self._settle(names, Settlement.done),
            "release": lambda: self._settle(names, Settlement.release),
            "dead": lambda: self._settle(names, lambda claim: Settlement.dead(claim, error="bad")),
            "renew": lambda: self.queue.renew(self.box, [self.claims[key] for key in names], HOUR),
            "reap": lambda: self.queue.reap(self.box, 10),
            "mark": lambda: self.queue.mark(self.box, [Key("charge", key) for key in names], "processed"),
            "replay": lambda: self.queue.replay(self.box, Filter()),
            "purge": lambda: self.queue.purge(self.box, Purge(State.DONE, timedelta())),
        }[verb]
        return Play(name, program)

    def _settle(self, keys: list[str], settle: Callable[[Claim], Settlement]) -> Any:
        return self.queue.settle(self.box, [settle(self.claims[key]) for key in keys])

    async def outcome(self, run: Run) -> tuple[Any, ...]:
        assert [actor.error for actor in run.actors] == [None, None], run
        rows = [tuple(row) for row in await self.place.watcher.fetch(FINAL, self.box.key)]
        results = tuple(_result(actor.play.name, actor.result) for actor in run.actors)
        return results, tuple(rows)


def _owner(name: str) -> UUID:
    return {"alice": ALICE, "bob": BOB, "carol": CAROL}[name]


def _result(name: str, result: Any) -> object:
    """What a caller can see of a result, without ids and times."""
    if name.startswith("begin"):
        return tuple(_seen(each) for each in result)
    # Both skip a row that another transaction has locked; the store repeats the renewal.
    return None if name.startswith(("reap", "renew", "purge")) else tuple(result)


def _seen(begun: Begun) -> tuple[object, ...]:
    fence = None if begun.claim is None else begun.claim.fence
    return begun.status, begun.deliveries, fence, begun.result, begun.error


@pytest.fixture
async def place() -> AsyncIterator[Sandbox]:
    async with sandbox(shared_database(), 2) as made:
        yield made


PAIRS = """
new      | begin bob 1      | begin carol 1
new      | begin bob 1 2    | begin carol 2 1
new      | begin bob 1      | begin carol 2 1
new      | begin bob 1      | mark 1
held     | begin bob 1      | done 1
held     | begin bob 1      | plain 1
held     | begin bob 1 2    | done 2 1
held     | begin bob 1 2    | release 2 1
held     | begin bob 1      | release 1
held     | begin bob 1      | dead 1
held     | begin bob 1      | renew 1
held     | begin alice 1    | done 1
held     | begin bob 1 2    | mark 2 1
held     | done 1 2         | dead 2 1
held     | done 1 2         | release 2 1
endless  | begin bob 1      | done 1
endless  | begin bob 1      | reap
late     | begin bob 1      | begin carol 1
late     | begin bob 1 2    | begin carol 2 1
late     | begin bob 1      | done 1
late     | begin bob 1      | release 1
late     | begin bob 1      | renew 1
late     | begin bob 1      | reap
late     | begin bob 1 2    | reap
late     | begin alice 1    | done 1
released | begin bob 1      | begin carol 1
released | begin bob 1 2    | begin carol 2 1
done     | begin bob 1      | purge
done     | begin bob 1 2    | purge
dead     | begin bob 1      | replay
dead     | begin bob 1 2    | replay
"""


def parsed() -> list[tuple[str, ...]]:
    return [tuple(part.strip() for part in line.split("|")) for line in PAIRS.strip().splitlines()]


@pytest.mark.req("CEB-004", "CEB-008", "C-26")
@pytest.mark.parametrize(("state", "first", "second"), parsed())
async def test_every_order_is_like_a_serial_one(place: Sandbox, state: str, first: str, second: str) -> None:
    async def run(schedule: Schedule) -> tuple[Any, Run]:
        world = World(place, state)
        await world.prepare()
        ran = await place.run([world.play(first), world.play(second)], schedule)
        return await world.outcome(ran), ran

    serial = {(await run(_Serial(order)))[0] for order in itertools.permutations((0, 1))}
    for schedule in schedules(3):
        outcome, ran = await run(schedule)
        assert ran.deadlocks == 0, ran
        assert outcome in serial, f"{ran}\n{outcome}\n{serial}"


class _Serial(Schedule):
    """One actor to its end, then the other."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__((), 0)
        self._order = order

    def choose(self, ready: list[int]) -> int:
        chosen = next(index for index in self._order if index in ready)
        self.taken.append(chosen)
        return chosen
