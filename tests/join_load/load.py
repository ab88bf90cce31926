"""Many joins at the same time: what their steps do, the producers, and the checks at the end. For every store.

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
from typing import Any, NamedTuple
from uuid import UUID

from postroom import Backoff, Ending, JoinStatus, Message, NewMessage, Outcome, Postroom, State, StepStatus
from postroom._kernel.joins import WAIT_TOPIC
from postroom._kernel.prefix import DEFAULT_PREFIX

BOX, STEP, FREE, COMPLETED, FAILED = "load", "step", "free", "join.completed", "join.failed"
EFFECTS = "effects"
"""The box that gets a message for each call of a continuation's handler. No worker claims from it."""
KINDS = ("ok", "retried", "dead", "replayed", "reported", "reported failed")
"""How a step goes. `replayed`: it is dead until it is replayed. `reported`: it ends by the first of two reports."""
WEIGHTS = (80, 6, 2, 3, 6, 3)
REPLAYED = "dead until it is replayed"
MODES = ("put", "attach", "open")
"""How messages become steps: enqueued as steps, attached while workers handle them, or put into an open join."""
MAX_LISTED = 1000
"""Steps that a handler or a check reads of one join."""


class Place(NamedTuple):
    """Where a store is: what each process needs to open it."""

    url: str
    prefix: str = DEFAULT_PREFIX

    def open(self, **options: Any) -> Postroom:
        return Postroom(self.url, prefix=self.prefix, **options)


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
    def failed(self) -> int:
        return self.kinds.count("dead") + self.kinds.count("reported failed")

    @property
    def must_complete(self) -> bool:
        """Whether nothing follows its failure: its continuation is then dead until it is replayed with the steps."""
        return not self.failed and self.number % 2 == 1

    @property
    def is_certain(self) -> bool:
        """Whether its end does not depend on whether a replay or a look comes first."""
        return self.must_complete or "replayed" not in self.kinds


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


class Effect(NamedTuple):
    """A call of a continuation's handler."""

    number: int
    """The payload of the continuation: the number of its join."""
    topic: str
    pending: int
    """Steps of the join that had not ended."""
    message: int
    delivery: int


class Handlers:
    """Handles steps as their plans say, and writes an effect for each continuation."""

    def __init__(self, room: Postroom, box: Any, load: Load) -> None:
        self._box, self._load = box, load
        self._effects: Any = room.outbox(EFFECTS)
        self._plans: dict[int, Plan] = {}
        box.handler(STEP)(self.step)
        box.handler(FREE)(self.free)
        for topic in (COMPLETED, FAILED):
            if room.store.features.transactional:
                box.handler(topic, transactional=True)(self.continuation_in_transaction)
            else:
                box.handler(topic)(self.continuation)

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

    async def continuation(self, message: Message[Any]) -> None:
        await self._effects.enqueue("effect", await self._effect_of(message))

    async def continuation_in_transaction(self, message: Message[Any], tx: Any) -> None:
        await self._effects.enqueue("effect", await self._effect_of(message), tx=tx)

    async def _effect_of(self, message: Message[Any]) -> Effect:
        steps = await self._box.join_steps(UUID(message.message_id), limit=MAX_LISTED)
        pending = sum(step.status is StepStatus.PENDING for step in steps)
        return Effect(message.payload, message.topic, pending, message.id, message.deliveries)


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
        on_fail = () if plan.must_complete else (FAILED, plan.number)
        for _ in range(2):
            await self._box.enqueue_join_wait(join, True, COMPLETED, plan.number, *on_fail)


async def replay_dead(box: Any) -> int:
    """Replays steps that are to be replayed, and the continuations of joins that failed. Returns their number."""
    dead = [
        message
        for message in await box.dead_letters(limit=MAX_LISTED)
        if message.topic == WAIT_TOPIC or REPLAYED in (message.last_error or "")
    ]
    return len(await box.replay(dead)) if dead else 0


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the state of a store has no event
            await asyncio.sleep(0.05)


async def is_handled(box: Any) -> bool:
    """Returns True if no message waits or is claimed, and none is to be replayed: all joins have ended."""
    if await replay_dead(box):
        return False
    counts = await box.counts()
    return not counts[State.WAITING] and not counts[State.CLAIMED]


async def effects(room: Postroom) -> list[Effect]:
    return [Effect(*message.payload) for message in await room.outbox(EFFECTS).find(limit=100_000)]


def check_sent_once(found: list[Effect], *, is_transactional: bool) -> None:
    """Checks that each continuation was one message, and that each of its deliveries was handled once.

    A transactional handler commits its effect with the ack, so it has one effect. Another handler is called again for
    the same message if its worker was killed before the ack.
    """
    sent = Counter(number for number, _ in {(effect.number, effect.message) for effect in found})
    twice = {number for number, count in sent.items() if count > 1}
    assert not twice, [effect for effect in found if effect.number in twice]
    repeated = Counter((effect.message, 0 if is_transactional else effect.delivery) for effect in found)
    assert set(repeated.values()) <= {1}, repeated


async def check(room: Postroom, box: Any, load: Load) -> Counter[str]:
    """Checks counts, statuses and effects of all joins. Returns how many joins have ended in which way."""
    found = await effects(room)
    check_sent_once(found, is_transactional=room.store.features.transactional)
    topics = {effect.number: effect.topic for effect in found}
    assert topics.keys() == set(range(load.joins))
    too_early = [effect for effect in found if effect.pending and load.plan(effect.number).is_certain]
    assert not too_early, too_early
    ended: Counter[str] = Counter()
    for number, id_ in load.ids.items():
        plan, join, continuation = load.plan(number), await box.get_join(id_), await box.get(str(id_))
        ended[join.status] += 1
        assert (continuation.state, continuation.ending) == (State.DONE, Ending.HANDLED), continuation
        assert join.attached_steps == plan.steps == join.completed_steps + join.failed_steps, join
        assert (join.status is JoinStatus.FAILED) == (topics[number] == FAILED) == (join.failed_steps > 0), join
        if not plan.is_certain:
            continue
        members = Counter(step.status for step in await box.join_steps(id_, limit=MAX_LISTED))
        assert members[StepStatus.COMPLETED] == join.completed_steps, join
        assert members[StepStatus.FAILED] == join.failed_steps, join
        assert join.failed_steps == plan.failed, (join, plan.kinds)
    return ended
