"""Many joins at the same time: what their steps do, the producers, and the checks at the end.

Everything that happens to a join follows from its number and the seed, so each process knows the plan of each join.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from postroom import Backoff, JoinStatus, Message, NewMessage, Outcome, Postroom, StepStatus

BOX, STEP, FREE, COMPLETED, FAILED = "load", "step", "free", "join.completed", "join.failed"
EFFECTS = "CREATE TABLE join_effects (join_number integer, topic text, pending integer)"
PENDING = """
SELECT count(*) FROM postroom_join_member m JOIN postroom_queue q ON q.id = m.message_id
 WHERE q.state IN (1, 2) AND m.outcome IS NULL
   AND m.join_id IN (SELECT j.id FROM postroom_join j WHERE j.wait_id = {0})
"""
KINDS = ("ok", "retried", "dead", "replayed", "reported", "reported failed")
"""How a step goes. `replayed`: it is dead until it is replayed. `reported`: it ends by the first of two reports."""
WEIGHTS = (80, 6, 2, 3, 6, 3)
REPLAYED = "dead until it is replayed"
MODES = ("put", "attach", "open")
"""How messages become steps: enqueued as steps, attached while workers handle them, or put into an open join."""


@dataclass(frozen=True)
class Plan:
    """What happens to one join."""

    number: int
    steps: int
    seed: int = 1

    @cached_property
    def _chance(self) -> random.Random:
        return random.Random(f"{self.seed} {self.number}")

    @cached_property
    def kinds(self) -> list[str]:
        if self._chance.random() < 0.4:
            return ["ok"] * self.steps
        return self._chance.choices(KINDS, WEIGHTS, k=self.steps)

    @cached_property
    def mode(self) -> str:
        return MODES[self.number % len(MODES)]

    @cached_property
    def waits_after(self) -> int:
        """The number of steps that are attached before the continuation is stored."""
        return random.Random(f"{self.seed} wait {self.number}").choice((0, self.steps // 2, self.steps))

    @property
    def is_replayed(self) -> bool:
        """Whether its end depends on whether a replay or a look comes first."""
        return "replayed" in self.kinds

    @property
    def failed(self) -> int:
        return self.kinds.count("dead") + self.kinds.count("reported failed")


@dataclass
class Load:
    """The joins of a run."""

    joins: int
    steps: int
    seed: int = 1
    ids: dict[int, UUID] = field(default_factory=dict)

    def plan(self, number: int) -> Plan:
        return Plan(number, self.steps, self.seed)


def open_box(room: Any, *, lease: float = 30.0, order: str = "none") -> Any:
    return room.outbox(
        BOX,
        order=order,
        lease_seconds=lease,
        batch_size=10,
        concurrency=4,
        max_attempts=10_000,
        backoff=Backoff.constant(0.005),
        poll_interval=timedelta(milliseconds=10),
        max_poll_interval=timedelta(milliseconds=200),
    )


async def query(tx: Any, text: str, *values: Any) -> list[Any]:
    """Runs a statement with parameters {0}, {1}, … on the connection of any driver."""
    module = type(tx).__module__
    if module.startswith("asyncpg"):
        rows = await tx.fetch(text.format(*(f"${number}" for number in range(1, len(values) + 1))), *values)
        return [tuple(row) for row in rows]
    marker = "%s" if module.startswith("psycopg") else "?"
    cursor = await tx.execute(text.format(*[marker] * len(values)), values)
    return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []


class Handlers:
    """Handles steps as their plans say, and writes an effect for each continuation."""

    def __init__(self, box: Any, load: Load) -> None:
        self._box, self._load = box, load
        self._plans: dict[int, Plan] = {}
        box.handler(STEP)(self.step)
        box.handler(FREE)(self.free)
        for topic in (COMPLETED, FAILED):
            box.handler(topic, transactional=True)(self.continuation)

    async def step(self, message: Message[Any]) -> Outcome | None:
        number, index, join = message.payload
        plan = self._plans.setdefault(number, self._load.plan(number))
        kind = plan.kinds[index]
        if kind == "retried" and message.attempt == 0:
            return Outcome.FAILED
        if kind == "dead":
            return Outcome.DEAD.because("by plan")
        if kind == "replayed" and REPLAYED not in (message.last_error or ""):
            return Outcome.DEAD.because(REPLAYED)
        if kind.startswith("reported"):
            # Raises MessageNotFound, and is retried, if the message is not attached yet.
            report = self._box.report_step_failed if kind == "reported failed" else self._box.report_step_completed
            await report(UUID(join), message)
            await self._box.report_step_completed(UUID(join), message)  # late
        return None

    async def free(self, message: Message[Any]) -> None:
        """Handles a message without a plan."""

    async def continuation(self, message: Message[Any], tx: Any) -> None:
        [(pending,)] = await query(tx, PENDING, message.id)
        text = "INSERT INTO join_effects (join_number, topic, pending) VALUES ({0}, {1}, {2})"
        await query(tx, text, message.payload, message.topic, pending)


class Producer:
    """Starts joins, attaches their steps, and stores their continuations."""

    def __init__(self, box: Any, load: Load, *, group: str | None = None) -> None:
        self._box, self._load = box, load
        self._group = group

    async def produce(self, numbers: range) -> None:
        for number in numbers:
            await self.start(self._load.plan(number))

    async def start(self, plan: Plan) -> None:
        join = await self._box.start_join("load", None if plan.mode == "open" else plan.steps)
        self._load.ids[plan.number] = join
        waited = False
        for first in range(0, plan.steps, 5):
            if first >= plan.waits_after and not waited:
                await self._wait(plan, join)
                waited = True
            indexes = range(first, min(first + 5, plan.steps))
            is_attached_late = plan.mode == "attach"
            receipts = await self._box.enqueue_many(
                NewMessage(
                    STEP,
                    [plan.number, index, str(join)],
                    message_id=f"{plan.number}-{index}",
                    group=None if self._group is None else f"{self._group}{plan.number % 3}",
                    join=None if is_attached_late else join,
                )
                for index in indexes
            )
            if is_attached_late:
                for receipt in receipts:
                    await self._box.attach_message_to_join(join, receipt)
                    await self._box.attach_message_to_join(join, receipt)
        if not waited:
            await self._wait(plan, join)
        if plan.mode == "open":
            await self._box.seal_join(join)

    async def _wait(self, plan: Plan, join: UUID) -> None:
        for _ in range(2):
            await self._box.enqueue_join_wait(join, True, COMPLETED, plan.number, FAILED, plan.number)


async def replay_dead(box: Any) -> int:
    """Replays dead letters that are to be replayed. Returns their number."""
    dead = [message for message in await box.dead_letters(limit=1000) if REPLAYED in (message.last_error or "")]
    return len(await box.replay(dead)) if dead else 0


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the state of a store has no event
            await asyncio.sleep(0.05)


async def effects(room: Postroom) -> list[tuple[int, str, int]]:
    async with room.store.transaction() as tx:
        return [tuple(row) for row in await query(tx, "SELECT join_number, topic, pending FROM join_effects")]


async def check(room: Postroom, box: Any, load: Load) -> Counter[str]:
    """Checks counts, statuses and effects of all joins. Returns how many joins have ended in which way."""
    found = await effects(room)
    per_join = Counter(number for number, _, _ in found)
    assert per_join == Counter(range(load.joins)), {n: c for n, c in per_join.items() if c != 1}
    topics = {number: topic for number, topic, _ in found}
    too_early = [(n, topic, pending) for n, topic, pending in found if pending and not load.plan(n).is_replayed]
    assert not too_early, too_early
    ended: Counter[str] = Counter()
    for number, id_ in load.ids.items():
        plan, join = load.plan(number), await box.get_join(id_)
        ended[join.status] += 1
        assert join.attached_steps == plan.steps == join.completed_steps + join.failed_steps, join
        assert (join.status is JoinStatus.FAILED) == (topics[number] == FAILED) == (join.failed_steps > 0), join
        if plan.is_replayed:
            continue
        members = Counter(step.status for step in await box.join_steps(id_, limit=10_000))
        assert members[StepStatus.COMPLETED] == join.completed_steps, join
        assert members[StepStatus.FAILED] == join.failed_steps, join
        assert join.failed_steps == plan.failed, (join, plan.kinds)
    return ended
