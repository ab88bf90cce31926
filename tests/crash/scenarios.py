"""For every program of the SQL stores, a database in which it has a lot to do, and the call that does it.

Everything is fixed: the clock stands still and owners have names, so that the same scenario gives the same database
each time, in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom._kernel.states import BoxKind
from postroom._stores.sql.store import SyncSqlStore
from postroom.spi import (
    Begin,
    Box,
    Claim,
    ClaimRequest,
    Delivery,
    Draft,
    Filter,
    JoinDraft,
    JoinWait,
    Key,
    NamedTarget,
    Order,
    Purge,
    Result,
    Retention,
    Settlement,
    State,
    StoredMessage,
)
from postroom.testing import FrozenClock
from tests.crash.stepping import SteppingStore

ALICE, BOB = UUID(int=1), UUID(int=2)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
FIFO = Order(fifo=True)


class Scene(NamedTuple):
    """What a scenario works with."""

    store: SyncSqlStore
    box: Box
    clock: FrozenClock

    def put(self, *ids: str, **options: Any) -> None:
        self.store.put(self.box, [Draft("shop", id_, "topic", "old", **options) for id_ in ids])

    def claim(self, *, owner: UUID = ALICE, lease: timedelta = HOUR, limit: int = 100) -> list[StoredMessage]:
        return list(self.store.claim(self.box, ClaimRequest(owner, lease, limit)))

    def claims(self, **options: Any) -> dict[str, Claim]:
        return {message.message_id: message.claim for message in self.claim(**options) if message.claim is not None}

    def settle(self, *settlements: Settlement) -> None:
        self.store.settle(self.box, settlements)

    def finish(self, *ids: str) -> None:
        """Put, claim and ack: these messages are done."""
        self.put(*ids)
        self.settle(*[Settlement.done(claim) for claim in self.claims().values()])

    def bury(self, *ids: str, **options: Any) -> None:
        self.put(*ids, **options)
        self.store.mark(self.box, [Key("shop", id_) for id_ in ids], "dead", error="bad")


Prepare = Callable[[Scene], Any]
Act = Callable[[SyncSqlStore, Box, Any, dict[str, Any]], Any]


class Scenario(NamedTuple):
    """`prepare` makes the database and returns what `act` needs. `act` passes `tx` on, where the verb takes it."""

    name: str
    prepare: Prepare
    act: Act
    order: Order = FIFO
    delivery: Delivery = Delivery()
    retention: Retention = Retention()
    joins_transactions: bool = True
    kinds: tuple[BoxKind, ...] = ("inbox", "outbox")

    def box(self, kind: BoxKind) -> Box:
        return Box(kind, "sweep", self.order, self.delivery, self.retention)

    def set_up(self, file: Path, kind: BoxKind) -> tuple[Any, FrozenClock]:
        """Makes the database. Returns what `act` needs, and the clock."""
        clock = FrozenClock()
        store = SteppingStore(file, clock)
        store.migrate()
        given = self.prepare(Scene(store, self.box(kind), clock))
        store.close()
        return given, clock


def prepare_put(scene: Scene) -> None:
    scene.put("past its window")
    scene.clock.advance(2 * HOUR)
    scene.finish("done")
    scene.bury("dead", group="d")
    scene.put("claimed")
    scene.claim()
    scene.store.record(scene.box, [Draft("shop", "seen")])
    scene.put("not due", due=scene.clock.now() + HOUR)
    scene.put("rival", collapse_key="price")
    scene.put("kept")


def act_put(store: SyncSqlStore, box: Box, given: None, tx: dict[str, Any]) -> Any:
    ids = ("new", "past its window", "done", "claimed", "seen", "not due")
    drafts = [Draft("shop", id_, "topic", "new", hash=b"1") for id_ in ids]
    drafts += [
        Draft("shop", "dead", "topic", "new", group="d", revive_dead=True),
        Draft("shop", "kept", "topic", "new", on_duplicate="reject"),
        Draft("shop", "newer", "topic", "new", collapse_key="price"),
        Draft("shop", "first", "topic", "new", group="g"),
        Draft("shop", "second", "topic", "new", group="g"),
        Draft("shop", "first", "topic", "new", group="g", expires=FrozenClock().now() + 100 * HOUR),
    ]
    return store.put(box, drafts, **tx)


def act_put_much(store: SyncSqlStore, box: Box, given: None, tx: dict[str, Any]) -> Any:
    """More than SQLite's cache holds: pages go to the disk before the commit."""
    return store.put(box, [Draft("shop", str(number), "topic", "x" * 5000) for number in range(600)], **tx)


def prepare_claim(scene: Scene) -> None:
    scene.put("expired", expires=scene.clock.now() + MINUTE)
    scene.put("head", group="waits for a retry")
    scene.put("tail", group="waits for a retry", due=scene.clock.now() + MINUTE)
    scene.settle(*[Settlement.retry(claim, delay=HOUR) for claim in scene.claims(limit=2).values()])
    scene.put("late", "behind", group="had a lease")
    scene.claim(lease=MINUTE, limit=1)
    scene.put("free", "also free")
    scene.put("one", "two", "three", group="g")
    scene.clock.advance(2 * MINUTE)


def prepare_settle(scene: Scene) -> dict[str, Claim]:
    scene.put("one", "two", "three", group="g")
    scene.put("four", "five", group="h")
    scene.put("done", "again", "gone", "given back", "by name", "stale")
    claims = scene.claims()
    scene.store.put(scene.box, [Draft("shop", "stale", "topic", "new")])
    return claims


def act_settle(store: SyncSqlStore, box: Box, claims: dict[str, Claim], tx: dict[str, Any]) -> Any:
    settlements = [
        Settlement.done(claims["one"]),
        Settlement.retry(claims["two"], error="bad"),
        Settlement.done(claims["three"]),
        Settlement.dead(claims["four"], error="worse"),
        Settlement.release(claims["five"]),
        Settlement.done(claims["done"]),
        Settlement.retry(claims["again"], delay=MINUTE),
        Settlement.dead(claims["gone"], error="worse"),
        Settlement.release(claims["given back"], delay=MINUTE),
        Settlement.done(NamedTarget(ALICE, "by name")),
        Settlement.done(claims["stale"]),
    ]
    return store.settle(box, settlements, **tx)


def prepare_leases(scene: Scene) -> list[Claim]:
    scene.put("a", "b")
    return list(scene.claims().values())


def prepare_reap(scene: Scene) -> None:
    scene.put("late", "later", group="g")
    scene.claim(lease=MINUTE)
    scene.put("expired", group="h", expires=scene.clock.now() + MINUTE)
    scene.put("behind", group="h")
    scene.clock.advance(2 * MINUTE)


def prepare_dead(scene: Scene) -> None:
    scene.bury("a", "b", group="g", expires=scene.clock.now() + HOUR)
    scene.bury("c")
    scene.put("behind", group="g")
    scene.clock.advance(2 * HOUR)


def prepare_finished(scene: Scene) -> None:
    scene.finish("done", "also done")
    scene.bury("dead", "also dead", group="g")
    scene.put("behind", group="g")
    scene.store.record(scene.box, [Draft("shop", "seen"), Draft("shop", "also seen")])
    scene.clock.advance(2 * HOUR)


def act_purge(state: State) -> Act:
    return lambda store, box, _given, _tx: store.purge(box, Purge(state, HOUR))


def act_record(store: SyncSqlStore, box: Box, given: None, tx: dict[str, Any]) -> Any:
    ids = ("done", "dead", "seen", "behind", "new")
    return store.record(box, [Draft("shop", id_, hash=b"1") for id_ in ids], **tx)


def act_mark(mark: Any) -> Act:
    keys = [Key("shop", id_) for id_ in ("done", "dead", "seen", "behind", "new")]
    return lambda store, box, _given, tx: store.mark(box, keys, mark, error="bad", **tx)


def prepare_cancel(scene: Scene) -> None:
    scene.put("head", "behind", "last", group="waits for a retry")
    scene.settle(*[Settlement.retry(claim, delay=HOUR) for claim in scene.claims(limit=1).values()])
    scene.put("not due", due=scene.clock.now() + HOUR, collapse_key="price", expires=scene.clock.now() + 2 * HOUR)
    scene.put("claimed")
    scene.claim()
    scene.put("of a story", "of the same", correlation_id="story")


def act_cancel(store: SyncSqlStore, box: Box, given: None, tx: dict[str, Any]) -> Any:
    keys = tuple(Key("shop", id_) for id_ in ("head", "not due", "claimed", "unknown"))
    return store.cancel(box, Filter(keys=keys), **tx)


JOINS = [UUID(int=number) for number in range(100, 110)]
FOLLOW_UP = FollowUp("next", "text", "text")


def start_joins(scene: Scene, *expected: int | None, wait: bool = True, **options: Any) -> None:
    """Starts the first of JOINS, with these numbers of expected steps, and stores their continuations."""
    for join, count in zip(JOINS, expected, strict=False):
        scene.store.start_join(scene.box, JoinDraft(join, "tenant", count, deadline=scene.clock.now() + 10 * HOUR))
        if wait:
            put_wait(scene.store, scene.box, join, {}, **options)


def put_wait(
    store: SyncSqlStore,
    box: Box,
    join: UUID,
    tx: dict[str, Any],
    on_complete: FollowUp | None = FOLLOW_UP,
    on_fail: FollowUp | None = FOLLOW_UP,
) -> Any:
    wait = JoinWait(join, True, on_complete, on_fail)
    return store.put_wait(box, Draft("shop", str(join), WAIT_TOPIC, on_duplicate="reject"), wait, **tx)


def prepare_joined(scene: Scene) -> dict[str, Claim]:
    """Two joins, each with a step that is watched and one that is not; the first is a step of the third."""
    start_joins(scene, 2, 2, 1)
    for join, names in zip(JOINS, (("a", "b"), ("c", "d")), strict=False):
        scene.put(*names, join=join)
    scene.store.attach_steps(scene.box, JOINS[2], [Key("shop", str(JOINS[0]))])
    return scene.claims()


def prepare_unattached(scene: Scene) -> None:
    """A join that lacks two steps; one message is done, and one waits."""
    start_joins(scene, 3)
    scene.put("a", join=JOINS[0])
    scene.claim()
    scene.finish("done")
    scene.put("waits")


def prepare_looks(scene: Scene) -> None:
    """Continuations that are due: joins that have completed, failed, wait for a step, and have no follow-up."""
    start_joins(scene, 1, 1, 1)
    for join, name in zip(JOINS, ("done", "dead", "waits"), strict=False):
        scene.put(name, join=join, due=scene.clock.now() + HOUR if name == "waits" else None)
    for join, name in zip(JOINS[3:], ("also done", "also dead", "again"), strict=False):
        scene.store.start_join(scene.box, JoinDraft(join, "tenant", 1))
        put_wait(scene.store, scene.box, join, {}, None, None)
        scene.put(name, join=join)
    for name, claim in scene.claims().items():
        scene.settle(
            Settlement.dead(claim, error="bad") if name.endswith(("dead", "again")) else Settlement.done(claim)
        )
    scene.store.attach_steps(scene.box, scene_join(scene), [Key("shop", str(JOINS[4]))])


def scene_join(scene: Scene) -> UUID:
    """Starts a join whose step is a continuation."""
    scene.store.start_join(scene.box, JoinDraft(JOINS[9], "tenant", 1))
    put_wait(scene.store, scene.box, JOINS[9], {})
    return JOINS[9]


def prepare_replayed(scene: Scene) -> None:
    """A continuation that was dead, and is replayed with the step that had failed."""
    start_joins(scene, 1, on_fail=None)
    scene.put("a", join=JOINS[0])
    scene.settle(*[Settlement.dead(claim, error="bad") for claim in scene.claims().values()])
    assert scene.claim() == []
    assert len(scene.store.replay(scene.box, Filter())) == 2


def prepare_steps_to_supersede(scene: Scene) -> None:
    """A step that is watched and can be superseded, and a join that lacks two steps."""
    start_joins(scene, 1, 2)
    scene.put("old", join=JOINS[0], collapse_key="price", due=scene.clock.now() + HOUR)
    scene.claim()
    scene.put("known")


def act_put_steps(store: SyncSqlStore, box: Box, given: None, tx: dict[str, Any]) -> Any:
    drafts = [
        Draft("shop", "newer", "topic", "new", collapse_key="price"),
        Draft("shop", "known", "topic", "new", join=JOINS[1]),
        Draft("shop", "new", "topic", "new", join=JOINS[1]),
    ]
    return store.put(box, drafts, **tx)


def act_settle_steps(store: SyncSqlStore, box: Box, claims: dict[str, Claim], tx: dict[str, Any]) -> Any:
    settlements = [Settlement.done(claims["a"]), Settlement.done(claims["b"]), Settlement.retry(claims["c"])]
    return store.settle(box, [*settlements, Settlement.dead(claims["d"], error="bad")], **tx)


def prepare_old_joins(scene: Scene) -> None:
    """Joins that have ended, and a pending one with a cancelled step."""
    start_joins(scene, 1, 1, 2)
    for join, name in zip(JOINS, "abc", strict=False):
        scene.put(name, join=join)
    scene.store.cancel(scene.box, Filter(keys=(Key("shop", "c"),)))
    while claims := scene.claims():
        scene.settle(*[Settlement.done(claim) for claim in claims.values()])
    scene.clock.advance(2 * HOUR)


def join_scenario(name: str, prepare: Prepare, act: Act, **options: Any) -> Scenario:
    return Scenario(name, prepare, act, order=Order(), kinds=("outbox",), **options)


JOIN_SCENARIOS = (
    join_scenario(
        "start join",
        lambda scene: start_joins(scene, 1),
        lambda store, box, _, tx: store.start_join(box, JoinDraft(JOINS[5], "tenant", 2, "text"), **tx),
    ),
    join_scenario(
        "attach steps",
        prepare_unattached,
        lambda store, box, _, tx: store.attach_steps(
            box, JOINS[0], [Key("shop", "done"), Key("shop", "waits"), Key("shop", "a")], **tx
        ),
    ),
    join_scenario("put steps", prepare_steps_to_supersede, act_put_steps),
    join_scenario(
        "report step",
        prepare_joined,
        lambda store, box, _, tx: store.report_step(box, JOINS[0], Key("shop", "b"), failed=True, **tx),
    ),
    join_scenario(
        "put wait",
        lambda scene: start_joins(scene, 1, wait=False),
        lambda store, box, _, tx: put_wait(store, box, JOINS[0], tx),
    ),
    join_scenario(
        "seal join",
        lambda scene: start_joins(scene, None),
        lambda store, box, _, tx: store.seal_join(box, JOINS[0], **tx),
    ),
    join_scenario(
        "cancel join",
        prepare_joined,
        lambda store, box, _, tx: store.cancel_join(box, JOINS[0], **tx),
        retention=Retention(on_success="delete"),
    ),
    join_scenario("settle steps", prepare_joined, act_settle_steps),
    join_scenario(
        "exchange steps",
        prepare_joined,
        lambda store, box, claims, _: store.exchange(
            box, [Settlement.done(claim) for claim in claims.values()], ClaimRequest(ALICE, HOUR, 100)
        ),
        joins_transactions=False,
    ),
    join_scenario(
        "look", prepare_looks, lambda store, box, _, tx: store.claim(box, ClaimRequest(BOB, HOUR, 100), **tx)
    ),
    join_scenario(
        "look again", prepare_replayed, lambda store, box, _, tx: store.claim(box, ClaimRequest(BOB, HOUR, 100), **tx)
    ),
    join_scenario("purge joins", prepare_old_joins, act_purge(State.DONE), joins_transactions=False),
)


def nothing(_scene: Scene) -> None:
    """An empty database is enough."""


def begin(key: str, owner: UUID, lease: timedelta | None = HOUR) -> Begin:
    return Begin(Draft("shop", key, "topic", hash=b"1"), owner, lease)


def prepare_begin(scene: Scene) -> None:
    def settle(key: str, outcome: Callable[[Claim], Settlement]) -> None:
        [begun] = scene.store.begin(scene.box, [begin(key, ALICE)])
        scene.settle(outcome(begun.claim))

    settle("past its window", Settlement.done)
    scene.clock.advance(2 * HOUR)
    settle("done", lambda claim: Settlement.done(claim, Result("1", "json")))
    settle("dead", lambda claim: Settlement.dead(claim, error="bad"))
    settle("released", Settlement.release)
    scene.store.begin(scene.box, [begin("late", ALICE, MINUTE), begin("marked", ALICE, None)])
    scene.clock.advance(2 * MINUTE)
    scene.store.begin(scene.box, [begin("held", ALICE)])


def act_begin(store: SyncSqlStore, box: Box, given: None, tx: dict[str, Any]) -> Any:
    keys = ("new", "past its window", "done", "dead", "released", "late", "marked", "held", "new")
    return store.begin(box, [begin(key, BOB) for key in keys])


def prepare_results(scene: Scene) -> list[Claim]:
    begun = scene.store.begin(scene.box, [begin(key, UUID(int=number)) for number, key in enumerate("abcd", 1)])
    return [each.claim for each in begun]


def act_results(store: SyncSqlStore, box: Box, claims: list[Claim], tx: dict[str, Any]) -> Any:
    settlements = [
        Settlement.done(claims[0], Result("1", "json")),
        Settlement.done(claims[1]),
        Settlement.release(claims[2]),
        Settlement.done(claims[3], Result(b"4", "bytes")),
    ]
    return store.settle(box, settlements, **tx)


SCENARIOS = (
    Scenario(
        "put",
        prepare_put,
        act_put,
        delivery=Delivery(on_stale_ack="requeue"),
        retention=Retention(dedup_window=HOUR),
    ),
    Scenario("put much", nothing, act_put_much, order=Order()),
    Scenario("claim", prepare_claim, lambda store, box, _, tx: store.claim(box, ClaimRequest(BOB, HOUR, 100), **tx)),
    Scenario(
        "settle",
        prepare_settle,
        act_settle,
        delivery=Delivery(on_stale_ack="requeue"),
        retention=Retention(on_success="delete"),
    ),
    Scenario(
        "exchange",
        prepare_settle,
        lambda store, box, claims, _: store.exchange(
            box, [Settlement.done(claim) for claim in claims.values()], ClaimRequest(BOB, HOUR, 100)
        ),
        joins_transactions=False,
    ),
    Scenario(
        "renew",
        prepare_leases,
        lambda store, box, claims, _: store.renew(box, claims, 2 * HOUR),
        joins_transactions=False,
    ),
    Scenario("reap", prepare_reap, lambda store, box, _, __: store.reap(box, 100), joins_transactions=False),
    Scenario(
        "reap and discard",
        prepare_reap,
        lambda store, box, _, __: store.reap(box, 100),
        retention=Retention(dead_letter="discard"),
        joins_transactions=False,
    ),
    Scenario(
        "replay",
        prepare_dead,
        lambda store, box, _, tx: store.replay(box, Filter(), **tx),
        order=Order(fifo=True, on_dead="block"),
    ),
    Scenario("cancel", prepare_cancel, act_cancel, retention=Retention(on_success="delete")),
    Scenario(
        "cancel what fits",
        prepare_cancel,
        lambda store, box, _, tx: store.cancel(box, Filter(correlation_id="story"), **tx),
    ),
    Scenario("record order", nothing, lambda store, box, _, __: store.record_order(box), joins_transactions=False),
    Scenario(
        "change order",
        lambda scene: scene.store.record_order(replace(scene.box, order=Order())),
        lambda store, box, _, tx: store.record_order(box, change=True, **tx),
    ),
    Scenario(
        "attend",
        nothing,
        lambda store, box, _, __: store.attend([box.key], ALICE, MINUTE),
        joins_transactions=False,
    ),
    Scenario("purge done", prepare_finished, act_purge(State.DONE), joins_transactions=False),
    Scenario(
        "purge dead",
        prepare_finished,
        act_purge(State.DEAD),
        order=Order(fifo=True, on_dead="block"),
        joins_transactions=False,
    ),
    Scenario("purge seen", prepare_finished, act_purge(State.SEEN), joins_transactions=False),
    Scenario("record", prepare_finished, act_record),
    Scenario("mark processing", prepare_finished, act_mark("processing")),
    Scenario("mark processed", prepare_finished, act_mark("processed")),
    Scenario("mark dead", prepare_finished, act_mark("dead")),
    Scenario("mark skipped", prepare_finished, act_mark("skipped"), order=Order(fifo=True, on_dead="block")),
    *JOIN_SCENARIOS,
    Scenario(
        "begin",
        prepare_begin,
        act_begin,
        order=Order(),
        retention=Retention(dedup_window=HOUR),
        joins_transactions=False,
        kinds=("guard",),
    ),
    Scenario("settle with results", prepare_results, act_results, order=Order(), kinds=("guard",)),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
