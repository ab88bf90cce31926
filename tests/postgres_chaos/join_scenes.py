"""What can meet at one join: the states in which it may be, and the verbs that may change it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom.errors import JoinEnded, MessageNotFound
from postroom.spi import (
    Box,
    Claim,
    ClaimRequest,
    Delivery,
    Draft,
    Filter,
    JoinDraft,
    JoinFilter,
    JoinWait,
    Key,
    Order,
    Purge,
    Retention,
    Settlement,
    State,
    StoredMessage,
)
from tests.postgres_chaos.explorer import Actor, Play, Run, Sandbox, schedules

ALICE, BOB, CAROL = UUID(int=1), UUID(int=2), UUID(int=3)
HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=50)
"""Long enough for a look that found a lock to be made again, and shorter than any sleep."""
DONE, FAILED = FollowUp("done", "", "text"), FollowUp("failed", "", "text")

PENDING = """
SELECT m.message_id FROM postroom_join_member m JOIN postroom_queue q ON q.id = m.message_id
 WHERE m.join_id = $1 AND m.outcome IS NULL AND q.state IN (1, 2)
"""
CONTINUATION = """
SELECT j.status, q.state, q.waits_for IS NOT NULL, (SELECT l.ending FROM postroom_ledger l WHERE l.id = j.wait_id)
  FROM postroom_join j LEFT JOIN postroom_queue q ON q.id = j.wait_id
 WHERE j.id = $1
"""


@dataclass
class World:
    """A box of its own, with one join in it."""

    sandbox: Sandbox
    box: Box = field(default_factory=lambda: Box("outbox", secrets.token_hex(8), Order(), Delivery(), Retention()))
    join: UUID = field(default_factory=uuid4)
    claims: dict[str, Claim] = field(default_factory=dict)
    other: World | None = None
    """Another join in the same box."""

    @property
    def queue(self) -> Any:
        return self.sandbox.driver.engine.make_queue()

    async def start(self, expected: int | None = 2) -> None:
        await self.sandbox.perform(self.queue.start_join(self.box, JoinDraft(self.join, "t", expected)))

    async def put(self, *names: str, join: bool = True, **options: Any) -> None:
        await self.sandbox.perform(self.queue.put(self.box, [self.draft(name, join, **options) for name in names]))

    def draft(self, name: str, join: bool = False, **options: Any) -> Draft:
        return Draft("shop", name, "step", "x", join=self.join if join else None, **options)

    async def claim(self, owner: UUID = ALICE) -> list[StoredMessage]:
        found: list[StoredMessage] = await self.sandbox.perform(
            self.queue.claim(self.box, ClaimRequest(owner, HOUR, 100))
        )
        return found

    async def hold(self) -> None:
        for message in await self.claim():
            assert message.claim is not None
            self.claims[message.message_id] = message.claim

    async def settle(self, *settlements: Settlement) -> list[bool]:
        kept: list[bool] = await self.sandbox.perform(self.queue.settle(self.box, settlements))
        return kept

    async def wait(self) -> None:
        await self.sandbox.perform(self.wait_program())

    def wait_program(self) -> Any:
        draft = Draft("shop", str(self.join), WAIT_TOPIC, on_duplicate="reject")
        return self.queue.put_wait(self.box, draft, JoinWait(self.join, True, DONE, FAILED))

    async def wake(self) -> None:
        """Takes the mark from the steps and wakes the continuation, as the end of a watched step does."""
        await self.sandbox.watcher.execute("UPDATE postroom_queue SET watched = NULL WHERE box = $1", self.box.key)
        await self.sandbox.watcher.execute(
            "UPDATE postroom_queue SET available_at = $2 WHERE waits_for = $1", self.join, self.sandbox.clock.now()
        )

    async def look(self) -> None:
        assert await self.claim(CAROL) == []

    async def pending(self) -> int:
        return len(await self.sandbox.watcher.fetch(PENDING, self.join))


# -- states ----------------------------------------------------------------------------------------------------------


async def held(world: World) -> None:
    """A and B are held; the continuation is awake, and no step is watched."""
    await world.start()
    await world.put("A", "B")
    await world.hold()
    await world.wait()
    await world.wake()


async def watched(world: World) -> None:
    """A and B are held; the continuation sleeps, and B is watched."""
    await held(world)
    await world.look()


async def one_left(world: World) -> None:
    """A is done and B is held; the continuation is awake, and no step is watched."""
    await held(world)
    await world.settle(Settlement.done(world.claims.pop("A")))


async def one_left_watched(world: World) -> None:
    await watched(world)
    await world.settle(Settlement.done(world.claims.pop("A")))


async def one_left_waiting(world: World) -> None:
    """A is done; B waits and has a collapse key; the continuation is awake, and no step is watched."""
    await world.start()
    await world.put("A")
    await world.hold()
    await world.settle(Settlement.done(world.claims.pop("A")))
    await world.put("B", collapse_key="k", due=world.sandbox.clock.now() + timedelta(seconds=30))
    await world.wait()
    await world.wake()


async def one_left_waiting_watched(world: World) -> None:
    await one_left_waiting(world)
    await world.look()


async def unfilled(world: World) -> None:
    """A is held; B is held and not attached yet; the continuation sleeps."""
    await world.start()
    await world.put("A")
    await world.put("B", join=False)
    await world.hold()
    await world.wait()
    await world.look()


async def unfilled_awake(world: World) -> None:
    await unfilled(world)
    await world.wake()


async def unfilled_last(world: World) -> None:
    """A is done; B is held and not attached yet."""
    await unfilled(world)
    await world.settle(Settlement.done(world.claims.pop("A")))


async def unfilled_ended(world: World) -> None:
    """A is done; B is dead and not attached yet; the continuation sleeps."""
    await unfilled_last(world)
    await world.settle(Settlement.dead(world.claims.pop("B"), error="bad"))


async def no_wait(world: World) -> None:
    """A and B are held; the continuation is not stored yet."""
    await world.start()
    await world.put("A", "B")
    await world.hold()


async def no_wait_unfilled(world: World) -> None:
    """A is done; B is held and not attached; the continuation is not stored yet."""
    await world.start()
    await world.put("A")
    await world.put("B", join=False)
    await world.hold()
    await world.settle(Settlement.done(world.claims.pop("A")))


async def no_wait_ended(world: World) -> None:
    """A is done; B is done and not attached; the continuation is not stored yet."""
    await no_wait_unfilled(world)
    await world.settle(Settlement.done(world.claims.pop("B")))


async def dead_awake(world: World) -> None:
    """A is dead, B is done; the continuation is awake."""
    await held(world)
    await world.settle(Settlement.dead(world.claims.pop("A"), error="bad"))
    await world.settle(Settlement.done(world.claims.pop("B")))


async def dead_and_held(world: World) -> None:
    """A is dead, B is held; the continuation sleeps, and B is watched."""
    await watched(world)
    await world.settle(Settlement.dead(world.claims.pop("A"), error="bad"))
    await world.look()


async def two_joins(world: World) -> None:
    """The steps A and B of one join are held, and C and D of another. Both continuations sleep; B and D are watched."""
    await watched(world)
    world.other = World(world.sandbox, world.box)
    await world.other.start()
    await world.other.put("C", "D")
    await world.hold()
    await world.other.wait()
    await world.look()


async def open_sleeping(world: World) -> None:
    """An open join: A is held, the continuation sleeps."""
    await world.start(None)
    await world.put("A")
    await world.hold()
    await world.wait()
    await world.look()


async def open_awake(world: World) -> None:
    await open_sleeping(world)
    await world.wake()


async def filled(world: World) -> None:
    """A and B are held; the continuation was stored last: it sleeps, and B is watched."""
    await world.start()
    await world.put("A", "B")
    await world.hold()
    await world.wait()


async def nested(world: World) -> None:
    """B and the continuation of an inner join are steps; A is a step of the inner join. A and B are held and watched.
    The inner join is late and has no follow-up, so its end is the end of a step. Its continuation has the higher id."""
    clock = world.sandbox.clock
    inner = world.other = World(world.sandbox, world.box)
    draft = JoinDraft(inner.join, "t", 1, deadline=clock.now() + timedelta(seconds=1))
    await world.start()
    await world.wait()
    await world.sandbox.perform(world.queue.start_join(world.box, draft))
    await inner.put("A")
    wait = Draft("shop", str(inner.join), WAIT_TOPIC, on_duplicate="reject")
    receipt = await world.sandbox.perform(world.queue.put_wait(world.box, wait, JoinWait(inner.join)))
    await world.sandbox.perform(world.queue.attach_steps(world.box, world.join, [receipt.id]))
    await world.put("B")
    await world.hold()
    await world.look()
    clock.advance(timedelta(seconds=2))


State_ = Callable[[World], Awaitable[None]]
STATES: dict[str, State_] = {
    state.__name__: state
    for state in (
        held,
        watched,
        one_left,
        one_left_watched,
        one_left_waiting,
        one_left_waiting_watched,
        unfilled,
        unfilled_awake,
        unfilled_last,
        unfilled_ended,
        no_wait,
        no_wait_unfilled,
        no_wait_ended,
        dead_awake,
        dead_and_held,
        two_joins,
        open_sleeping,
        open_awake,
        filled,
        nested,
    )
}

# -- plays -----------------------------------------------------------------------------------------------------------

Program = Callable[[World], Any]


def _settle(make: Callable[[Claim], Settlement], *names: str) -> Program:
    return lambda world: world.queue.settle(world.box, [make(world.claims[name]) for name in names])


def _dead(claim: Claim) -> Settlement:
    return Settlement.dead(claim, error="bad")


def _mixed(dead: str, done: str) -> Program:
    return lambda world: world.queue.settle(world.box, [_dead(world.claims[dead]), Settlement.done(world.claims[done])])


def _purge(state: State) -> Program:
    return lambda world: world.queue.purge(world.box, Purge(state, timedelta()))


def _report(name: str, *, failed: bool) -> Program:
    return lambda world: world.queue.report_step(world.box, world.join, Key("shop", name), failed)


def _exchange(*names: str) -> Program:
    return lambda world: world.queue.exchange(
        world.box, [Settlement.done(world.claims[name]) for name in names], ClaimRequest(ALICE, HOUR, 10)
    )


def _inner(world: World) -> World:
    assert world.other is not None
    return world.other


def _cancel(name: str) -> Program:
    return lambda world: world.queue.cancel(world.box, Filter(keys=(Key("shop", name),)))


def _mark(name: str, mark: str) -> Program:
    return lambda world: world.queue.mark(world.box, [Key("shop", name)], mark, "bad")


PROGRAMS: dict[str, Program] = {
    "done A": _settle(Settlement.done, "A"),
    "done B": _settle(Settlement.done, "B"),
    "done A+B": _settle(Settlement.done, "A", "B"),
    "dead A": _settle(_dead, "A"),
    "dead B": _settle(_dead, "B"),
    "dead A, done D": _mixed("A", "D"),
    "dead C, done B": _mixed("C", "B"),
    "exchange B+D": _exchange("B", "D"),
    "exchange A+B": _exchange("A", "B"),
    "dead A+B": _settle(_dead, "A", "B"),
    "dead A, done B": _mixed("A", "B"),
    "done A+C": _settle(Settlement.done, "A", "C"),
    "dead A+C": _settle(_dead, "A", "C"),
    "retry B": _settle(lambda claim: Settlement.retry(claim, delay=timedelta()), "B"),
    "exchange A": _exchange("A"),
    "exchange B": _exchange("B"),
    "claim": lambda world: world.queue.claim(world.box, ClaimRequest(BOB, HOUR, 10)),
    "attach B": lambda world: world.queue.attach_steps(world.box, world.join, [Key("shop", "B")]),
    "wait": lambda world: world.wait_program(),
    "replay": lambda world: world.queue.replay(world.box, Filter(topic="step")),
    "report A": _report("A", failed=False),
    "report B": _report("B", failed=False),
    "report B failed": _report("B", failed=True),
    "cancel inner join": lambda world: world.queue.cancel_join(world.box, _inner(world).join),
    "cancel join": lambda world: world.queue.cancel_join(world.box, world.join),
    "seal": lambda world: world.queue.seal_join(world.box, world.join),
    "put C": lambda world: world.queue.put(world.box, [world.draft("C", True)], in_caller_tx=True),
    "supersede B": lambda world: world.queue.put(
        world.box, [world.draft("N", collapse_key="k", due=world.sandbox.clock.now() + timedelta(seconds=30))]
    ),
    "purge dead": _purge(State.DEAD),
    "purge done": _purge(State.DONE),
    "cancel B": _cancel("B"),
    "mark B processed": _mark("B", "processed"),
    "mark B dead": _mark("B", "dead"),
}
MAY_BE_LATE = {"put C", "seal", "attach B", "wait"}
"""These raise JoinEnded if the join has ended before."""


def play(world: World, name: str) -> Play:
    """Returns the play of a name: a program, and how its transaction ends."""
    base = name.removesuffix(" in tx").removesuffix(" rolled back")
    program = PROGRAMS[base]
    ending = "ROLLBACK" if name.endswith(" rolled back") else "COMMIT"
    return Play(name, lambda: program(world), callers=base != name, ending=ending)


# -- what must be true afterwards ------------------------------------------------------------------------------------


async def complaints(world: World, run: Run) -> list[str]:
    """Returns what is wrong, in words."""
    names = [actor.play.name for actor in run.actors]
    wrong = [
        f"{actor.play.name} raised {type(actor.error).__name__}: {actor.error}"
        for actor in run.actors
        if actor.error is not None and not _is_late(actor, names)
    ]
    if run.deadlocks:
        wrong.append("deadlock")
    sent = [message for message in _claimed(run) if message.message_id == str(world.join)]
    pending = await world.pending()
    if sent and pending and "replay" not in names:
        wrong.append(f"sent while {pending} steps were pending")
    for _ in range(10):
        if (found := await _claim_when_due(world, wrong)) is None:
            break
        sent += found
        if not await _end_one(world):
            break
    is_cancelled = any(actor.play.name == "cancel join" and actor.result is True for actor in run.actors)
    if is_cancelled and sent:
        wrong.append("sent after the join was cancelled")
    if not is_cancelled and await _is_filled(world) and len(sent) != 1:
        wrong.append(f"sent {len(sent)} times")
    return wrong


async def _claim_when_due(world: World, wrong: list[str]) -> list[StoredMessage] | None:
    """Claims once, and complains if the continuation is claimed too early or not. Returns it if it was claimed, and
    None if the join was cancelled before its continuation was stored."""
    world.sandbox.clock.advance(SOON)
    pending = await world.pending()
    status, state, waits, ending = await world.sandbox.watcher.fetchrow(CONTINUATION, world.join)
    if state is None and ending is None:
        if status != 0:
            return None
        await world.wait()
        status, state, waits, _ = await world.sandbox.watcher.fetchrow(CONTINUATION, world.join)
    claimed = await world.claim(CAROL)
    found = [message for message in claimed if message.message_id == str(world.join)]
    is_due = status == 0 and waits and not pending and await _is_filled(world)
    was_released = status != 0 and state == 1 and not waits
    if is_due and not found:
        wrong.append("not claimable, although no step is pending")
    # After the claim: it may have ended an inner join, whose continuation was the last step.
    pending = await world.pending()
    if found and pending and not was_released:
        wrong.append(f"claimable, although {pending} steps are pending")
    world.claims.update({message.message_id: message.claim for message in claimed if message.claim is not None})
    return found


def _is_late(actor: Actor, names: list[str]) -> bool:
    """Whether a verb has failed since the other came first: the join had ended, or the message was gone."""
    if isinstance(actor.error, MessageNotFound):
        return bool({"purge dead", "supersede B"} & set(names))
    return isinstance(actor.error, JoinEnded) and actor.play.name.removesuffix(" in tx") in MAY_BE_LATE


async def _is_filled(world: World) -> bool:
    [join] = await world.sandbox.perform(world.queue.find_joins(world.box, JoinFilter(ids=(world.join,))))
    return bool(join.is_sealed or join.attached_steps == join.expected_steps)


async def _end_one(world: World) -> bool:
    """Ends one step that is held, or lets time pass for one that waits. Returns False if all have ended."""
    for message_id, claim in sorted(world.claims.items()):
        del world.claims[message_id]
        if (await world.settle(Settlement.done(claim)))[0]:
            return True
    left = await world.sandbox.watcher.fetch(
        "SELECT id FROM postroom_queue WHERE box = $1 AND state IN (1, 2) AND waits_for IS NULL", world.box.key
    )
    if left:
        world.sandbox.clock.advance(timedelta(minutes=1))
    return bool(left)


def _claimed(run: Run) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for actor in run.actors:
        result = actor.result[1] if isinstance(actor.result, tuple) and len(actor.result) == 2 else actor.result
        if isinstance(result, list) and actor.error is None:
            found += [item for item in result if getattr(item, "claim", None) is not None]
    return found


def keep_claims(world: World, run: Run) -> None:
    """Adds what the actors have claimed to the claims of the world, so that it can be settled."""
    for message in _claimed(run):
        if message.claim is not None:
            world.claims[message.message_id] = message.claim


async def explore(sandbox: Sandbox, state: str, first: str, second: str, *, switches: int) -> int:
    """Runs two plays in all orders with at most so many switches. Returns the number of orders."""
    orders = 0
    for schedule in schedules(switches):
        world = World(sandbox)
        await STATES[state](world)
        run = await sandbox.run([play(world, first), play(world, second)], schedule)
        keep_claims(world, run)
        wrong = await complaints(world, run)
        assert not wrong, f"{[first, second]} {run}: {'; '.join(wrong)}"
        orders += 1
    return orders
