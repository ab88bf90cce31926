"""What can meet on one FIFO group: the states in which it may be, and the verbs that may come to it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from postroom.spi import (
    Box,
    Claim,
    ClaimRequest,
    Delivery,
    Draft,
    Filter,
    Key,
    Order,
    Purge,
    Retention,
    Settlement,
    State,
    StoredMessage,
)
from tests.postgres_chaos.explorer import Play, Run, Sandbox

ALICE, BOB, CAROL = UUID(int=1), UUID(int=2), UUID(int=3)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
GROUP = "g"

STUCK = """
SELECT s.id FROM postroom_queue s
 WHERE s.box = $1 AND s.group_id IS NOT NULL AND s.state = 1 AND s.available_at IS NULL
   AND NOT EXISTS (SELECT FROM postroom_nudge n WHERE n.box = s.box AND n.group_id = s.group_id)
   AND NOT EXISTS (
        SELECT FROM postroom_queue w
         WHERE w.box = s.box AND w.group_id = s.group_id
           AND (w.state = 4 OR w.available_at IS NOT NULL
                               AND NOT (w.delayed AND w.available_at > $2)))
"""
LEASES = """
SELECT id, owner, fence, lease_until FROM postroom_queue WHERE box = $1 AND state = 2 AND $2::timestamptz IS NOT NULL
"""
HOLDERS = """
SELECT group_id, array_agg(DISTINCT owner) FROM postroom_queue
 WHERE box = $1 AND group_id IS NOT NULL AND state = 2 AND lease_until > $2
 GROUP BY group_id HAVING count(DISTINCT owner) > 1
"""
UNMARKED = """
SELECT id FROM postroom_queue WHERE box = $1 AND holds IS DISTINCT FROM CASE WHEN state = 2 THEN group_id END
   AND $2::timestamptz IS NOT NULL
"""
OVERTAKEN = """
SELECT behind.id, behind.fence, ahead.id FROM postroom_queue behind
  JOIN postroom_queue ahead ON ahead.box = behind.box AND ahead.group_id = behind.group_id AND ahead.id < behind.id
 WHERE behind.box = $1 AND behind.state = 2 AND behind.lease_until > $2
   AND NOT (ahead.delayed AND ahead.available_at > $2)
   AND ahead.owner IS DISTINCT FROM behind.owner
"""
WAITING = """
SELECT id FROM postroom_queue WHERE box = $1 AND state = 1 AND $2::timestamptz IS NOT NULL
"""
UNCOLLAPSED = """
SELECT older.id FROM postroom_queue older
  JOIN postroom_queue newer ON newer.box = older.box AND newer.collapse_key = older.collapse_key AND newer.id > older.id
 WHERE older.box = $1 AND older.state = 1 AND newer.state = 1 AND $2::timestamptz IS NOT NULL
"""


State_ = Callable[["World"], Awaitable[None]]


@dataclass
class World:
    """A box of its own, with one group in it."""

    sandbox: Sandbox
    box: Box
    claims: dict[str, Claim] = field(default_factory=dict)
    head_came_late: bool = False
    """Whether the first of the line came to it when a later one was already held."""

    @property
    def queue(self) -> Any:
        return self.sandbox.driver.engine.make_queue()

    async def put(self, *names: str, **options: Any) -> None:
        await self.sandbox.perform(self.queue.put(self.box, [draft(name, **options) for name in names]))

    async def claim(
        self, limit: int = 100, *, owner: UUID = ALICE, lease: timedelta = HOUR, topic: str | None = None
    ) -> list[StoredMessage]:
        request = ClaimRequest(owner, lease, limit, None if topic is None else frozenset({topic}))
        found: list[StoredMessage] = await self.sandbox.perform(self.queue.claim(self.box, request))
        return found

    async def hold(self, limit: int, *, lease: timedelta = HOUR, topic: str | None = None) -> None:
        for message in await self.claim(limit, lease=lease, topic=topic):
            assert message.claim is not None
            self.claims[message.message_id] = message.claim

    async def settle(self, *settlements: Settlement) -> list[bool]:
        kept: list[bool] = await self.sandbox.perform(self.queue.settle(self.box, settlements))
        return kept

    async def rows(self, query: str) -> list[Any]:
        found: list[Any] = await self.sandbox.watcher.fetch(query, self.box.key, self.sandbox.clock.now())
        return found


class Template:
    """A state, made once and copied for each run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._moment = world.sandbox.clock.now()
        self._copy = ""

    @classmethod
    async def of(cls, sandbox: Sandbox, state: State_, box: Box) -> Template:
        world = World(sandbox, box)
        await state(world)
        template = cls(world)
        template._copy = await template._statement()
        return template

    async def _statement(self) -> str:
        parts = []
        for table in ("message", "queue", "ledger"):
            found = await self._world.sandbox.watcher.fetch(
                "SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position",
                f"postroom_{table}",
            )
            columns = [row[0] for row in found]
            values = [{"id": "new.id", "box": "$2"}.get(column, f"t.{column}") for column in columns]
            parts.append(
                f"{table} AS (INSERT INTO postroom_{table} ({', '.join(columns)}) SELECT {', '.join(values)} "
                f"FROM postroom_{table} t JOIN new ON new.old = t.id)"
            )
        return (
            "WITH new AS MATERIALIZED (SELECT o.id AS old, nextval('postroom_ids') AS id FROM "
            "(SELECT id FROM postroom_message WHERE box = $1 ORDER BY id) o), "
            + ", ".join(parts)
            + " SELECT old, id FROM new"
        )

    async def copy(self) -> World:
        sandbox = self._world.sandbox
        sandbox.clock.advance(self._moment - sandbox.clock.now())
        box = replace(self._world.box, name=secrets.token_hex(8))
        found = await sandbox.watcher.fetch(self._copy, self._world.box.key, box.key)
        ids = dict(map(tuple, found))
        claims = {name: claim._replace(id=ids[claim.id]) for name, claim in self._world.claims.items()}
        return World(sandbox, box, claims, self._world.head_came_late)


def draft(name: str, **options: Any) -> Draft:
    return Draft("shop", name, **{"topic": "a", "payload": "x", "group": GROUP, **options})


# -- states: what the group is like before ---------------------------------------------------------------------------


async def free(world: World) -> None:
    await world.put("1", "2", "3")


async def first_held(world: World) -> None:
    await world.put("1", "2", "3")
    await world.hold(1)


async def pair_held(world: World) -> None:
    await world.put("1", "2")
    await world.hold(1)


async def pair_late(world: World) -> None:
    await world.put("1", "2")
    await world.hold(1, lease=MINUTE)
    world.sandbox.clock.advance(HOUR)


async def pair_free(world: World) -> None:
    await world.put("1", "2")


async def alone_free(world: World) -> None:
    await world.put("1")


async def alone_held(world: World) -> None:
    await world.put("1")
    await world.hold(1)


async def two_held(world: World) -> None:
    await world.put("1", "2", "3")
    await world.hold(2)


async def two_late(world: World) -> None:
    await world.put("1", "2", "3")
    await world.hold(2, lease=MINUTE)
    world.sandbox.clock.advance(HOUR)


async def first_late(world: World) -> None:
    await world.put("1", "2", "3")
    await world.hold(1, lease=MINUTE)
    world.sandbox.clock.advance(HOUR)


async def held_with_stale_time(world: World) -> None:
    """2 came by a caller's transaction, and still has a time, although it is behind 1."""
    await world.put("1")
    await world.sandbox.perform(world.queue.put(world.box, [draft("2")], in_caller_tx=True))
    await world.put("3")
    await world.hold(1)
    await world.sandbox.watcher.execute(
        "UPDATE postroom_queue SET available_at = $2 WHERE box = $1 AND available_at IS NULL AND id = "
        "(SELECT id FROM postroom_message WHERE box = $1 AND message_id = '2')",
        world.box.key,
        world.sandbox.clock.now(),
    )


async def waits_for_retry(world: World) -> None:
    await first_held(world)
    await world.settle(Settlement.retry(world.claims["1"], delay=HOUR))


async def one_not_due(world: World) -> None:
    await world.put("1", due=world.sandbox.clock.now() + HOUR)
    await world.put("2", "3")


async def one_dead(world: World) -> None:
    await first_held(world)
    await world.settle(Settlement.dead(world.claims["1"], error="bad"))


async def one_done(world: World) -> None:
    await world.put("0")
    await world.hold(1)
    await world.settle(Settlement.done(world.claims["0"]))
    await world.put("1", "2")
    await world.hold(1)


async def two_topics(world: World) -> None:
    """1 is for one kind of worker, the rest for another; 2 is a hint too."""
    await world.put("1", topic="a")
    await world.sandbox.perform(world.queue.put(world.box, [draft("2", topic="b")], in_caller_tx=True))
    await world.put("3", topic="b")


async def due_ahead_of_holder(world: World) -> None:
    """1 came to the line when it was due, ahead of 2, which a worker of another topic holds."""
    await world.put("1", topic="a", due=world.sandbox.clock.now() + MINUTE)
    await world.put("2", "3", topic="b")
    await world.hold(1, topic="b")
    world.sandbox.clock.advance(2 * MINUTE)
    world.head_came_late = True


async def due_ahead_of_late(world: World) -> None:
    """The same, and the lease on 2 has passed."""
    await due_ahead_of_holder(world)
    world.sandbox.clock.advance(2 * HOUR)


async def asleep_ahead_of_holder(world: World) -> None:
    """The same as `due_ahead_of_holder`, and a worker of its topic has asked for 1 in vain."""
    await due_ahead_of_holder(world)
    assert await world.claim(owner=BOB, topic="a") == []


async def asleep_ahead_of_late(world: World) -> None:
    await asleep_ahead_of_holder(world)
    world.sandbox.clock.advance(2 * HOUR)


async def replayed_ahead_of_holder(world: World) -> None:
    """1 was dead when 2 was claimed by a worker of another topic."""
    await world.put("1", topic="a")
    await world.hold(1)
    await world.settle(Settlement.dead(world.claims.pop("1"), error="bad"))
    await world.put("2", "3", topic="b")
    await world.hold(1, topic="b")
    await world.sandbox.perform(world.queue.replay(world.box, Filter()))
    world.head_came_late = True


async def due_behind_holder(world: World) -> None:
    """2 is due, and stands behind 1, which a worker of another topic holds."""
    await world.put("1", topic="a")
    await world.put("2", topic="b", due=world.sandbox.clock.now() + MINUTE)
    await world.hold(1, topic="a")
    world.sandbox.clock.advance(2 * MINUTE)


async def due_behind_late(world: World) -> None:
    await due_behind_holder(world)
    world.sandbox.clock.advance(2 * HOUR)


async def collapsible_retry(world: World) -> None:
    """1 has a collapse key and waits for its retry; 2 does not know yet that it stands behind."""
    await world.put("1", collapse_key="price")
    await world.hold(1)
    await world.settle(Settlement.retry(world.claims.pop("1"), delay=HOUR))
    await world.put("2", "3")


async def collapsible_behind_retry(world: World) -> None:
    """1 waits for its retry; 2 has a collapse key and does not know yet that it stands behind."""
    await world.put("1")
    await world.hold(1)
    await world.settle(Settlement.retry(world.claims.pop("1"), delay=HOUR))
    await world.put("2", collapse_key="price")
    await world.put("3")


async def collapsible_behind_held(world: World) -> None:
    """1 is held; 2 has a collapse key and does not know yet that it stands behind."""
    await world.put("1")
    await world.hold(1)
    await world.put("2", collapse_key="price")
    await world.put("3")


STATES: dict[str, State_] = {
    state.__name__: state
    for state in (
        free,
        first_held,
        alone_free,
        alone_held,
        pair_held,
        pair_late,
        pair_free,
        two_held,
        two_late,
        first_late,
        held_with_stale_time,
        waits_for_retry,
        one_not_due,
        one_dead,
        one_done,
        two_topics,
        due_ahead_of_holder,
        due_ahead_of_late,
        asleep_ahead_of_holder,
        asleep_ahead_of_late,
        replayed_ahead_of_holder,
        due_behind_holder,
        due_behind_late,
        collapsible_retry,
        collapsible_behind_retry,
        collapsible_behind_held,
    )
}

# -- plays: who may come ---------------------------------------------------------------------------------------------

Make = Callable[[World], Play | None]
PLAYS: dict[str, Make] = {}


def play(name: str, **options: Any) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
    """`make` returns a function that makes the program, or None if the state has nothing for it."""

    def register(make: Callable[[World], Any]) -> Callable[[World], Any]:
        def made(world: World) -> Play | None:
            program = make(world)
            return None if program is None else Play(name, program, **options)

        PLAYS[name] = made
        return make

    return register


def claims_of(world: World, *names: str) -> list[Claim] | None:
    found = [world.claims[name] for name in names if name in world.claims]
    return found if len(found) == len(names) else None


def _claims() -> None:
    asks = (
        ("claim one", 1, None),
        ("claim all", 10, None),
        ("claim a", 10, frozenset({"a"})),
        ("claim b", 10, frozenset({"b"})),
    )
    for name, limit, topics in asks:

        def make(world: World, limit: int = limit, topics: frozenset[str] | None = topics) -> Any:
            return lambda: world.queue.claim(world.box, ClaimRequest(BOB, HOUR, limit, topics))

        play(name)(make)


def _settlements() -> None:
    verdicts: dict[str, Callable[[Claim], Settlement]] = {
        "done": Settlement.done,
        "dead": lambda claim: Settlement.dead(claim, error="bad"),
        "release": Settlement.release,
        "retry": lambda claim: Settlement.retry(claim, delay=HOUR),
    }
    for verdict, settle in verdicts.items():
        for names in (("1",), ("1", "2"), ("2",)):

            def make(world: World, names: tuple[str, ...] = names, settle: Any = settle) -> Any:
                held = claims_of(world, *names)
                if held is None:
                    return None
                return lambda: world.queue.settle(world.box, [settle(claim) for claim in held])

            play(f"{verdict} {'+'.join(names)}")(make)
            if names == ("1",):
                play(f"{verdict} 1 rolled back", callers=True, ending="ROLLBACK")(make)

    def exchange(world: World) -> Any:
        held = claims_of(world, "1")
        if held is None:
            return None
        return lambda: world.queue.exchange(world.box, [Settlement.done(held[0])], ClaimRequest(ALICE, HOUR, 10))

    play("exchange 1")(exchange)

    def renew(world: World) -> Any:
        return (lambda: world.queue.renew(world.box, list(world.claims.values()), HOUR)) if world.claims else None

    play("renew")(renew)


def _puts() -> None:
    drafts: dict[str, Callable[[World], list[Draft]]] = {
        "put new": lambda _: [draft("8"), draft("9")],
        "put due": lambda world: [draft("9", due=world.sandbox.clock.now() + 2 * HOUR)],
        "put again 1": lambda _: [draft("1")],
        "put again 2": lambda _: [draft("2")],
        "put again 2, new": lambda _: [draft("2"), draft("9")],
        "put again 0, new": lambda _: [draft("0"), draft("9")],
        "put again 2 due": lambda world: [draft("2", due=world.sandbox.clock.now() + 2 * HOUR)],
        "put again 1 expires": lambda world: [draft("1", expires=world.sandbox.clock.now() + 20 * HOUR)],
        "put again 1 due": lambda world: [draft("1", due=world.sandbox.clock.now() + 2 * HOUR)],
        "put again 2 rejected": lambda _: [draft("2", hash=b"2", on_conflict="reject")],
        "put again 2 kept": lambda _: [draft("2", hash=b"2", on_conflict="keep")],
        "put again 1 refused": lambda _: [draft("1", on_duplicate="reject")],
        "put again 2, 1 refused": lambda _: [draft("2"), draft("1", on_duplicate="reject")],
        "put collapse": lambda _: [draft("9", collapse_key="price")],
        "revive": lambda _: [draft("1", revive_dead=True)],
    }
    for name, of in drafts.items():

        def make(world: World, of: Callable[[World], list[Draft]] = of, *, joined: bool = False) -> Any:
            return lambda: world.queue.put(world.box, of(world), in_caller_tx=joined)

        def joined(world: World, make: Any = make) -> Any:
            return make(world, joined=True)

        play(name)(make)
        play(f"{name} in tx", callers=True)(joined)
        play(f"{name} rolled back", callers=True, ending="ROLLBACK")(joined)


def _marks() -> None:
    for mark in ("processing", "processed", "dead", "skipped"):
        for name in ("1", "2"):

            def make(world: World, mark: Any = mark, name: str = name) -> Any:
                return lambda: world.queue.mark(world.box, [Key("shop", name)], mark, "bad")

            play(f"mark {name} {mark}")(make)
            play(f"mark {name} {mark} rolled back", callers=True, ending="ROLLBACK")(make)
    for name in ("1", "2"):

        def record(world: World, name: str = name) -> Any:
            return lambda: world.queue.record(world.box, [Draft("shop", name)])

        play(f"record {name}")(record)
        play(f"record {name} rolled back", callers=True, ending="ROLLBACK")(record)


def _cancellations() -> None:
    filters = {
        "cancel 1": Filter(keys=(Key("shop", "1"),)),
        "cancel 2": Filter(keys=(Key("shop", "2"),)),
        "cancel 2+1": Filter(keys=(Key("shop", "2"), Key("shop", "1"))),
        "cancel all": Filter(topic="a"),
    }
    for name, which in filters.items():

        def make(world: World, which: Filter = which) -> Any:
            return lambda: world.queue.cancel(world.box, which)

        play(name)(make)
        play(f"{name} in tx", callers=True)(make)
        play(f"{name} rolled back", callers=True, ending="ROLLBACK")(make)


def _cleaning() -> None:
    play("reap")(lambda world: lambda: world.queue.reap(world.box, 100))
    play("replay")(lambda world: lambda: world.queue.replay(world.box, Filter()))
    play("replay rolled back", callers=True, ending="ROLLBACK")(
        lambda world: lambda: world.queue.replay(world.box, Filter())
    )
    play("purge dead")(lambda world: lambda: world.queue.purge(world.box, Purge(State.DEAD, timedelta())))
    play("purge done")(lambda world: lambda: world.queue.purge(world.box, Purge(State.DONE, timedelta())))


_claims()
_settlements()
_puts()
_marks()
_cancellations()
_cleaning()

# -- what must be true afterwards ------------------------------------------------------------------------------------

LATE = ("replay", "revive", "put again 1")
"""These may put a message into its line ahead of one that was claimed meanwhile."""


KEEPS_CLAIMS = ("claim", "reap", "put", "renew", "record")
"""These end no claim whose lease was renewed."""
CANCELLED = {"cancel 1": "1", "cancel 1 in tx": "1", "cancel 2": "2", "cancel 2 in tx": "2", "cancel 2+1": "12"}
"""What these name."""
FREES = ("release", "retry", "dead", "mark", "replay", "revive", "reap")
"""These may let a message wait again that could not be superseded while it was held."""


async def complaints(world: World, run: Run, *, topics: Sequence[str | None] = (None,)) -> list[str]:
    """What is wrong, in words; nothing if all is well. `topics`: of the workers that drain the box, in turn."""
    wrong: list[str] = []
    for actor in run.actors:
        if actor.error is not None:
            wrong.append(f"{actor.play.name} raised {type(actor.error).__name__}: {actor.error}")
    if run.deadlocks:
        wrong.append("deadlock")
    if stuck := await world.rows(STUCK):
        wrong.append(f"stuck: {await names_of(world, (row[0] for row in stuck))}")
    if await world.rows(HOLDERS):
        wrong.append("two holders of one group")
    if unmarked := await world.rows(UNMARKED):
        wrong.append(
            f"held and not marked, or marked and not held: {await names_of(world, (row[0] for row in unmarked))}"
        )
    late = any(actor.play.name.startswith(LATE) or actor.play.callers for actor in run.actors)
    held_before = {(claim.id, claim.fence) for claim in world.claims.values() if world.head_came_late}
    if not late and any((row[0], row[1]) not in held_before for row in await world.rows(OVERTAKEN)):
        wrong.append("overtaken")
    wrong += await complaints_about_claims(world, run)
    wrong += await complaints_about_renewals(world, run)
    if not any(actor.play.name.startswith(FREES) for actor in run.actors) and (left := await world.rows(UNCOLLAPSED)):
        wrong.append(f"not superseded: {await names_of(world, (row[0] for row in left))}")
    wrong += await complaints_about_cancellations(world, run)
    wrong += await drain(world, topics)
    return wrong


async def names_of(world: World, ids: Iterable[int]) -> list[str]:
    found = await world.sandbox.watcher.fetch("SELECT message_id FROM postroom_message WHERE id = ANY ($1)", list(ids))
    return [row[0] for row in found]


async def complaints_about_claims(world: World, run: Run) -> list[str]:
    given = list(world.claims.values())
    for result in run.results:
        claimed = result[1] if isinstance(result, tuple) and len(result) == 2 else result
        for item in claimed if isinstance(claimed, list) else []:
            if getattr(item, "claim", None) is not None:
                given.append(item.claim)
    proofs = [(claim.id, claim.fence) for claim in given]
    wrong = [] if len(proofs) == len(set(proofs)) else ["one claim was given twice"]
    ends = {(claim.id, claim.owner, claim.fence): claim.until for claim in given}
    if not any(actor.play.name == "renew" for actor in run.actors):
        for id_, owner, fence, until in await world.rows(LEASES):
            if ends.get((id_, owner, fence)) != until:
                wrong.append(f"a lease ends at {until}, its claim says {ends.get((id_, owner, fence))}")
    return wrong


async def complaints_about_renewals(world: World, run: Run) -> list[str]:
    """A lease that renew calls kept has a new end, for as long as the claim holds."""
    wrong: list[str] = []
    leases = {(id_, owner, fence): until for id_, owner, fence, until in await world.rows(LEASES)}
    lasts = all(actor.play.name.startswith(KEEPS_CLAIMS) for actor in run.actors)
    waits = any(actor.play.callers for actor in run.actors)  # a caller's transaction may last longer than a lease
    for actor in run.actors:
        if actor.play.name != "renew" or actor.error is not None:
            continue
        for (name, claim), kept in zip(world.claims.items(), actor.result, strict=True):
            until = leases.get((claim.id, claim.owner, claim.fence))
            if kept and until is None and lasts:
                wrong.append(f"renew has kept the claim of {name}, which holds no more")
            if kept and until is not None and until <= claim.until:
                wrong.append(f"renew has kept the claim of {name}, and its lease still ends at {until}")
            if kept is False and until is not None and until > world.sandbox.clock.now() and not waits:
                wrong.append(f"renew has not kept the claim of {name}, which holds until {until}")
    return wrong


async def complaints_about_cancellations(world: World, run: Run) -> list[str]:
    """What a cancel names waits no more, whatever lock it met; unless another verb lets it wait again."""
    if any(actor.play.name.startswith(FREES) for actor in run.actors):
        return []
    named = {
        name
        for actor in run.actors
        if actor.play.name in CANCELLED and actor.play.ending == "COMMIT" and actor.error is None
        for name in CANCELLED[actor.play.name]
    }
    waiting = await names_of(world, (row[0] for row in await world.rows(WAITING)))
    return [f"not cancelled: {left}"] if (left := sorted(named & set(waiting))) else []


async def drain(world: World, topics: Sequence[str | None] = (None,)) -> list[str]:
    """Later, when all leases have passed: everything is handled, in order."""
    world.sandbox.clock.advance(10 * HOUR)
    order: list[int] = []
    in_vain = 0
    for topic in itertools.islice(itertools.cycle(topics), 50):
        claimed = await world.claim(10, owner=CAROL, topic=topic)
        in_vain = 0 if claimed else in_vain + 1
        if in_vain == 2 * len(topics):
            break
        order += [message.id for message in claimed]
        kept = await world.settle(*[Settlement.done(message.claim) for message in claimed if message.claim])
        if not all(kept):
            return ["a fresh claim did not hold"]
    left = await world.sandbox.watcher.fetch(
        "SELECT id FROM postroom_queue q WHERE box = $1 AND state IN (1, 2) AND NOT EXISTS ("
        "SELECT FROM postroom_queue d WHERE d.box = q.box AND d.group_id = q.group_id AND d.state = 4 AND d.id < q.id)",
        world.box.key,
    )
    wrong = [f"never claimed: {await names_of(world, (row[0] for row in left))}"] if left else []
    return wrong if order == sorted(order) else [*wrong, f"out of order: {order}"]


def box_of(name: str, *, on_dead: Any = "unblock", retention: Retention | None = None) -> Box:
    return Box("inbox", name, Order(fifo=True, on_dead=on_dead), Delivery(), retention or Retention())
