"""Programs of several connections, one statement at a time, in every order.

An actor runs a verb on a connection of its own, exactly as the driver does, but stops after every visit to the server.
A *schedule* says who goes next. The explorer runs a scene under one schedule after the other, until it has seen all of
them, or all with at most so many switches between actors: faults that need many switches are rare.

An actor that waits for a lock of another is left waiting until that one moves on. A deadlock is left to PostgreSQL; its
victim begins again, as the room would do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from postroom._kernel.program import Call, Program, call, verb
from postroom._stores.sql.postgres.asyncpg import AsyncpgAdapter
from postroom._stores.sql.postgres.driver import PostgresDriver
from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.postgres.errors import sqlstate
from postroom._stores.sql.statements import SqlProgram
from postroom.testing import FrozenClock

DEADLOCK = "40P01"
MOST_DEADLOCKS = 3
TICK = 0.001
"""Seconds between visits: time goes by, and a visit may see what is younger than its own moment."""
MOST_STEPS = 200
"""A run that takes longer does not end."""

_SILENT = ("BEGIN", "SELECT $1::timestamptz", "SELECT nextval(")
"""Visits that neither read nor write what others see: there is no switch after them."""


class _NoPool:
    """The driver's way to run statements, without its way to find connections."""

    adapter = AsyncpgAdapter()


class _Driver(PostgresDriver):
    @verb
    def perform(self, program: SqlProgram[Any], connection: Any) -> Program[Any]:
        return (yield from self.in_own_transaction(program, connection))


def make_driver(clock: FrozenClock) -> _Driver:
    pool: Any = _NoPool()
    return _Driver(pool, PostgresEngine(own_clock=True, notifies=False), name="explored", adapters=(), clock=clock)


@dataclass
class Play:
    """What an actor plays: a verb, and whose transaction it is in."""

    name: str
    program: Callable[[], SqlProgram[Any]]
    callers: bool = False
    """In a transaction of a caller, who ends it later: with what `ending` says."""
    ending: str = "COMMIT"
    isolation: str = "READ COMMITTED"


class Actor:
    """A play on a connection."""

    def __init__(self, play: Play, driver: PostgresDriver, connection: asyncpg.Connection[Any], pid: int) -> None:
        self.play = play
        self.pid = pid
        self._driver, self._connection = driver, connection
        self.visit: Call | None = None
        """Its next visit; None once it has ended."""
        self.task: asyncio.Task[Any] | None = None
        """Its visit, while it waits for a lock."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.deadlocks = 0
        self._begin()

    def _begin(self) -> None:
        self._visits = self._in_callers() if self.play.callers else self._in_own()
        self._advance(None)

    def _in_own(self) -> Program[Any]:
        return self._driver.in_own_transaction(self.play.program(), self._connection)

    def _in_callers(self) -> Program[Any]:
        adapter = _NoPool.adapter
        yield call(adapter.execute, self._connection, f"BEGIN ISOLATION LEVEL {self.play.isolation}")
        try:
            result = yield from self._driver.in_caller_transaction(self.play.program(), adapter, self._connection)
        except BaseException:
            yield call(adapter.execute, self._connection, "ROLLBACK")
            raise
        yield call(adapter.execute, self._connection, self.play.ending)
        return result if self.play.ending == "COMMIT" else None

    @property
    def is_done(self) -> bool:
        return self.visit is None

    @property
    def is_ready(self) -> bool:
        return self.visit is not None and self.task is None

    @property
    def is_waiting(self) -> bool:
        return self.task is not None

    async def go(self, is_blocked: Callable[[Actor], Awaitable[bool]]) -> str:
        """Makes one visit that others can notice, and those before it that they cannot. Returns its text."""
        while True:
            assert self.visit is not None
            text = str(self.visit.args[1])
            self.task = asyncio.create_task(self._make(self.visit))
            await self.watch(is_blocked)
            if self.is_done or self.is_waiting or not text.startswith(_SILENT):
                return text

    async def watch(self, is_blocked: Callable[[Actor], Awaitable[bool]]) -> None:
        """Until the visit has ended, or waits for a lock."""
        while self.task is not None:
            await asyncio.wait({self.task}, timeout=0.003)
            if not self.task.done():
                if await is_blocked(self):
                    return
                continue
            task, self.task = self.task, None
            if (error := task.exception()) is None:
                self._advance(task.result())
            else:
                self._fail(error)

    async def _make(self, visit: Call) -> Any:
        return await visit()

    def _advance(self, result: Any) -> None:
        try:
            self.visit = self._visits.send(result)
        except StopIteration as end:
            self.visit, self.result = None, end.value
        except Exception as raised:  # noqa: BLE001 - what a verb raises is recorded
            self._end(raised)

    def _fail(self, error: BaseException) -> None:
        """Raises the error in the program, which rolls back."""
        if sqlstate(error) == DEADLOCK:
            self.deadlocks += 1
        try:
            self.visit = self._visits.throw(error)
        except Exception as raised:  # noqa: BLE001 - what a verb raises is recorded
            self._end(raised)
        else:
            # A failed transaction holds no locks any more: other orders of its ROLLBACK make no difference.
            rollback = self.visit
            assert rollback is not None
            self.task = asyncio.create_task(self._roll_back(rollback))

    async def _roll_back(self, rollback: Call) -> None:
        await self._make(rollback)

    def _end(self, error: Exception) -> None:
        self.visit = None
        if sqlstate(error) == DEADLOCK and not self.play.callers and self.deadlocks < MOST_DEADLOCKS:
            self._begin()  # as the room does
        else:
            self.error = error


@dataclass
class Run:
    """What came of one schedule."""

    schedule: list[int]
    actors: list[Actor]
    order: list[str]

    @property
    def results(self) -> list[Any]:
        return [actor.result for actor in self.actors]

    @property
    def deadlocks(self) -> int:
        return sum(actor.deadlocks for actor in self.actors)

    def __str__(self) -> str:
        return f"schedule {self.schedule}: " + " | ".join(self.order)


@dataclass
class Sandbox:
    """Connections for actors, and one that watches who waits for whom."""

    driver: _Driver
    clock: FrozenClock
    connections: list[Any]
    pids: list[int]
    watcher: Any
    names: dict[str, str] = field(default_factory=dict)

    async def is_blocked(self, actor: Actor) -> bool:
        return bool(await self.watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", actor.pid))

    async def run(self, plays: Sequence[Play], schedule: Schedule) -> Run:
        actors = [
            Actor(play, self.driver, connection, pid)
            for play, connection, pid in zip(plays, self.connections, self.pids, strict=False)
        ]
        order: list[str] = []
        for _ in range(MOST_STEPS):
            ready = [index for index, actor in enumerate(actors) if actor.is_ready]
            if not ready:
                waiting = [actor for actor in actors if actor.task is not None]
                if not waiting:
                    break
                # All wait for each other: PostgreSQL finds that out.
                await asyncio.wait([actor.task for actor in waiting if actor.task], return_when=asyncio.FIRST_COMPLETED)
                for actor in waiting:
                    await actor.watch(self.is_blocked)
                continue
            index = schedule.choose(ready)
            self.clock.advance(TICK)
            text = await actors[index].go(self.is_blocked)
            order.append(f"{index}:{self._name(text)}" + (" waits" if actors[index].is_waiting else ""))
            for actor in actors:
                if actor.task is not None:
                    await actor.watch(self.is_blocked)
        else:
            raise AssertionError(f"no end after {MOST_STEPS} steps: {order}")
        return Run(schedule.taken, actors, order)

    def _name(self, text: str) -> str:
        if not self.names:
            self.names = {book.numbered: name for name, book in self.driver.engine.statements.items()}
        return self.names.get(text, text)

    async def perform(self, program: SqlProgram[Any]) -> Any:
        """Run a program in a transaction of its own, all at once: to set a scene, and to look at what came of it."""
        return await self.driver.perform(program, self.connections[0])


class Schedule:
    """Follows a prefix of choices, then the first that is allowed; remembers where it could have gone instead."""

    def __init__(self, prefix: Sequence[int], max_switches: int) -> None:
        self._prefix = prefix
        self._left = max_switches
        self._last: int | None = None
        self.taken: list[int] = []
        self.others: list[list[int]] = []

    def choose(self, ready: list[int]) -> int:
        allowed = ready
        if self._last in ready:
            # To leave an actor that could go on is a switch, and the number of switches is limited.
            others = [index for index in ready if index != self._last] if self._left else []
            allowed = [self._last, *others]
        position = len(self.taken)
        chosen = self._prefix[position] if position < len(self._prefix) else allowed[0]
        if chosen not in allowed:  # another one was the victim of a deadlock this time
            chosen, allowed = allowed[0], allowed[:1]
        if self._last in ready and chosen != self._last:
            self._left -= 1
        self.others.append(allowed[allowed.index(chosen) + 1 :])
        self.taken.append(chosen)
        self._last = chosen
        return chosen


class RandomSchedule(Schedule):
    """Goes on with the same actor two times out of three."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__((), 0)
        self._chance = chance

    def choose(self, ready: list[int]) -> int:
        stay = self._last in ready and self._chance.random() < 2 / 3
        self._last = self._last if stay and self._last is not None else self._chance.choice(ready)
        self.taken.append(self._last)
        return self._last


def schedules(max_switches: int) -> Iterator[Schedule]:
    """All of them, depth first. Each must be run before the next is asked for."""
    prefix: list[int] | None = []
    while prefix is not None:
        schedule = Schedule(prefix, max_switches)
        yield schedule
        prefix = _next_prefix(schedule)


def _next_prefix(schedule: Schedule) -> list[int] | None:
    for position in range(len(schedule.taken) - 1, -1, -1):
        if schedule.others[position]:
            return [*schedule.taken[:position], schedule.others[position][0]]
    return None


@asynccontextmanager
async def sandbox(url: str, actors: int) -> AsyncIterator[Sandbox]:
    clock = FrozenClock()
    settings = {
        "deadlock_timeout": "10ms",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
    connections = [await asyncpg.connect(url, server_settings=settings) for _ in range(actors)]
    watcher = await asyncpg.connect(url)
    try:
        pids = [connection.get_server_pid() for connection in connections]
        yield Sandbox(make_driver(clock), clock, connections, pids, watcher)
    finally:
        for connection in [*connections, watcher]:
            await connection.close()
