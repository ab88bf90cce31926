"""Random histories: the same calls on the memory store, which is the specification, and on a SQL store.

Every answer must be the same, and after every call so must be all that `find` and `counts` show. Both stores share a
clock that the history moves. Names are few, so that duplicates, groups and collapse keys collide all the time.

Which group of a FIFO box comes first is a store's own choice. There the model follows the SQL store: it looks at groups
in the order in which that one took them, and must then take the same messages.

Nothing may be stuck. A claim with room takes the first in line of every free group. At the end of a history every
worker has crashed and every time has come: workers, one of each topic, must handle all that is left, except what
stands behind a dead letter that blocks.

POSTROOM_HISTORIES sets the number of histories for a longer search.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postroom._connect import open_store
from postroom._kernel.clock import to_microseconds
from postroom._kernel.policy import cause_of_death
from postroom._stores.memory import Entry, Shelf, SyncMemoryStore
from postroom._stores.sql.drivers.sqlite import MEMORY, Sqlite3Driver
from postroom._stores.sql.store import SyncSqlStore
from postroom.errors import AmbiguousMessageId
from postroom.spi import (
    Ask,
    Box,
    Claim,
    Delivery,
    Draft,
    Ending,
    Filter,
    Held,
    Keeping,
    Key,
    Order,
    Purge,
    Receipt,
    Settlement,
    State,
    StoredMessage,
    is_in_line,
)
from postroom.testing import FrozenClock
from tests.postgres import shared_database
from tests.redis import cluster, new_prefix, open_at, server
from tests.redis_invariants import complaints

HISTORIES = int(os.environ.get("POSTROOM_HISTORIES", "350"))
STEPS = 40
POSTGRES_SHARE = 5
"""Every statement is a visit to a server there: one history in so many."""
REDIS_SHARE = 2
CLUSTER_SHARE = 8
"""There every verb is."""

OWNERS = (UUID(int=1), UUID(int=2), UUID(int=3))
TOPICS = ("x", "y")
NO_TOPIC = ""
"""What a message has that was only recorded, and then marked."""
EVERYTHING = Filter(limit=10_000)
ENOUGH = 10_000
UNFINISHED = frozenset({State.SEEN, State.WAITING, State.CLAIMED, State.DEAD})


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


PLAIN = Order()
UNBLOCK = Order(fifo=True)
BLOCK = Order(fifo=True, on_dead="block")
SHORT_MEMORY = Keeping(dedup_window=seconds(15), retention_from="completed_at")
FORGETFUL = Keeping(on_success="delete", dead_letter="discard")
Asks = tuple[frozenset[str] | None, ...]
SINGLE_ASKS: Asks = (frozenset({"x"}), frozenset({"y"}))
ALL_ASKS: Asks = (None, *SINGLE_ASKS, frozenset(TOPICS))
LIMITED = Delivery(max_deliveries=2, on_stale_ack="requeue")

BOXES = [
    Box("inbox", "plain", PLAIN),
    Box("inbox", "plain-limited", PLAIN, LIMITED, SHORT_MEMORY),
    Box("outbox", "plain-forgetful", PLAIN, keeping=FORGETFUL),
    Box("inbox", "fifo", UNBLOCK),
    Box("outbox", "fifo-limited", UNBLOCK, LIMITED, SHORT_MEMORY),
    Box("inbox", "fifo-forgetful", UNBLOCK, keeping=FORGETFUL),
    Box("inbox", "block", BLOCK),
    Box("outbox", "block-limited", BLOCK, LIMITED, SHORT_MEMORY),
]


LINE_BOXES = [Box("inbox", "line", UNBLOCK), Box("outbox", "line-block", BLOCK)]

sources = st.sampled_from(["a", "b"])
message_ids = st.sampled_from(["1", "2", "3", "4"])
keys = st.builds(Key, sources, message_ids)
owners = st.sampled_from(OWNERS)
leases = st.sampled_from([5, 10, 30]).map(seconds)
delays = st.sampled_from([None, None, seconds(3), seconds(20)])
ages = st.sampled_from([0, 10, 50]).map(seconds)
offsets = st.sampled_from([None, None, None, -5, 8, 25])
asks = st.integers(0, 11)
"""Which of the asks of a history: each has the same weight."""
verdicts = st.sampled_from(["done", "done", "retry", "release", "dead"])
errors = st.sampled_from([None, "boom", "bang"])
numbers = st.integers(0, 10_000)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Draft, int | None, int | None]:
    """A draft, with its due and expires as seconds from now: the clock is known only when it is put."""
    payload: str | bytes = draw(st.sampled_from(["p", "q"]) | st.just(b"p"))
    draft = Draft(
        *draw(keys),
        topic=draw(st.sampled_from(TOPICS)),
        payload=payload,
        format="bytes" if isinstance(payload, bytes) else "text",
        headers=draw(st.sampled_from([None, {"trace": "1"}])),
        correlation_id=draw(st.sampled_from([None, "c"])),
        group=draw(st.sampled_from([None, "g", "g", "h"])),
        collapse_key=draw(st.sampled_from([None, None, "k"])),
        hash=draw(st.sampled_from([None, b"1", b"2"])),
        hash_algorithm=draw(st.sampled_from(["sha256", "sha256", "md5"])),
        lifetime=draw(st.sampled_from([None, None, None, None, seconds(15)])),
        on_conflict=draw(st.sampled_from(["update", "keep", "reject"])),
        revive_dead=draw(st.booleans()),
        on_duplicate=draw(st.sampled_from(["update", "update", "reject"])),
    )
    return draft, draw(offsets), draw(st.sampled_from([None, None, None, None, None, None, 12, 35]))


line_plans = st.tuples(
    st.builds(
        Draft,
        source=st.just("a"),
        message_id=st.sampled_from(["1", "2", "3", "4", "5", "6"]),
        topic=st.sampled_from(TOPICS),
        group=st.sampled_from(["g", "g", "h"]),
        **dict.fromkeys(("headers", "correlation_id", "collapse_key", "hash", "due", "expires", "lifetime"), st.none()),
        received_at=st.none(),
        payload=st.just("p"),
        format=st.just("text"),
        hash_algorithm=st.just("sha256"),
        on_conflict=st.just("update"),
        revive_dead=st.just(False),
        on_duplicate=st.sampled_from(["update", "update", "reject"]),
    ),
    st.sampled_from([None, None, 8]),
    st.none(),
)
"""Messages in groups: some with a due time, none that expires."""

filters = st.builds(
    Filter,
    topic=st.sampled_from([None, None, "x"]),
    source=st.sampled_from([None, None, "a"]),
    message_id=st.sampled_from([None, None, "1"]),
    group=st.sampled_from([None, None, "g"]),
    correlation_id=st.sampled_from([None, None, "c"]),
    limit=st.sampled_from([1, 2, 100]),
    # `builds` would make up values for these.
    states=st.none(),
    ids=st.none(),
    after=st.just(0),
    blocking=st.just(False),
    keys=st.none(),
)


class FollowingShelf(Shelf):
    """A shelf that looks at groups in a given order, and then at the rest in its own."""

    preferred: Sequence[str | int] = ()

    def candidates(self, now: int, ask: Ask) -> Iterator[Entry]:
        def rank(entry: Entry) -> tuple[int, int, int]:
            name = entry.line or entry.id
            place = self.preferred.index(name) if name in self.preferred else len(self.preferred)
            return place, entry.available_at or 0, entry.id

        due = [e for e in self.entries.values() if e.available_at is not None and e.available_at <= now]
        for entry in sorted(due, key=rank):
            still = entry.available_at is not None and entry.available_at <= now
            if still and (ask.topics is None or entry.draft.topic in ask.topics):
                yield entry

    def doomed(self, box: Box, now: int) -> list[Entry]:
        """Messages that must not be claimed any more: a claim buries one where it happens to look first."""
        return [
            entry
            for entry in self.entries.values()
            if entry.state in {State.WAITING, State.CLAIMED}
            and cause_of_death(
                box,
                deliveries=entry.deliveries,
                lost_leases=entry.lost_leases,
                expires=None if entry.expires is None else to_microseconds(entry.expires),
                now=now,
            )
        ]

    def has_lapsed(self, now: int) -> bool:
        """Whether a lease has ended while a claim has a choice between groups: then a store may take the front of one
        group, with or without a look at the other, which ends the claims there."""
        due = [e for e in self.entries.values() if e.available_at is not None and e.available_at <= now]
        return len({e.line or e.id for e in due}) > 1 and any(e.state is State.CLAIMED for e in due)

    def claimable(self, now: int, topics: frozenset[str] | None) -> set[int]:
        """The first in line of each group that nobody holds, if it is ready: what a claim with room takes."""
        found: set[int] = set()
        for group in self.lines:
            line = [entry for entry in self.line(group) if is_in_line(entry, now)]
            ends = [entry.available_at or 0 for entry in line if entry.state is State.CLAIMED]
            if line and not any(end > now for end in ends) and self.is_ready(line[0], now, topics):
                found.add(line[0].id)
        return found

    def is_ready(self, entry: Entry, now: int, topics: frozenset[str] | None) -> bool:
        wanted = topics is None or entry.topic in topics
        if getattr(entry, "lost_leases", 0):  # it may have to be claimed alone
            return False
        return wanted and entry.state is not State.DEAD and (entry.available_at is None or entry.available_at <= now)


class Lines(RuleBasedStateMachine):
    """One history in one FIFO box, of what matters for its lines: few verbs, so that they meet often."""

    keeps_places = False
    """Whether a message whose lease was lost is claimed where it stood before, not where the lease ended; and whether
    of those that were done at the same moment any may be purged first."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FrozenClock()
        self.model = SyncMemoryStore(clock=self.clock)
        self.sql = self.open(self.clock)
        self.box = BOXES[0]
        self.asked = ALL_ASKS
        """The topics for which claims are made."""
        self.shelf = FollowingShelf()
        self.ids: dict[int, int] = {}
        """The SQL store's id → the model's: a SQL store may leave numbers out."""
        self.fences: dict[tuple[int, int], int] = {}
        """The model's id and fence → the other store's fence: it must grow, by whatever steps."""
        self.seen: dict[int, StoredMessage] = {}
        """What the model showed after the last call."""
        self.claims: list[tuple[Claim, Claim]] = []
        """Every claim so far, the model's and the SQL store's, most of them stale."""
        self.calls: dict[tuple[int, int], int] = {}
        """(id, fence) → which call of claim made it."""
        self.call = 0

    def open(self, clock: FrozenClock) -> Any:
        """The SQL store, empty or with boxes that nobody else uses."""
        return SyncSqlStore(Sqlite3Driver(MEMORY, clock=clock), deploy_schema=True, durable=False)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # a history that has failed is not continued
                self.drain()
        finally:
            self.sql.close()

    @initialize(box=st.sampled_from(LINE_BOXES), asked=st.sampled_from([ALL_ASKS, SINGLE_ASKS, SINGLE_ASKS]))
    def choose(self, box: Box, asked: Asks) -> None:
        """Where only claims for one topic are made, none comes to the help of another."""
        self.open_box(box, asked)

    def open_box(self, box: Box, asked: Asks) -> None:
        self.asked = asked
        self.box = replace(box, name=f"{box.name}-{secrets.token_hex(4)}")
        self.model._shelves[self.box.key] = self.shelf

    # -- comparing -----------------------------------------------------------------------------------------------

    def both(self, call: Callable[[Any, bool], Any]) -> tuple[Any, Any]:
        """The answers of both stores; an error that the protocol knows is an answer too."""
        return _answer(call, self.model, False), _answer(call, self.sql, True)

    def compare(self, *, purged: bool = False) -> None:
        mine, theirs = self.both(lambda store, _: store.find(self.box, EVERYTHING))
        assert len(mine) == len(theirs)
        for message, other in zip(mine, theirs, strict=True):
            assert self.ids.setdefault(other.id, message.id) == message.id
            assert self.translate(other, message) == message
        counts, other_counts = self.both(lambda store, _: store.counts(self.box))
        assert counts == other_counts
        now = {message.id: message for message in mine}
        if not purged:
            assert self.seen.keys() <= now.keys(), "a message disappeared without a purge"
        for id_, before in self.seen.items():
            if before.state is State.DONE and id_ in now:
                assert now[id_].state is State.DONE, "a done message came back"
        self.seen = now

    def has(self, *states: State) -> bool:
        return any(message.state in states for message in self.seen.values())

    def translate(self, message: StoredMessage, mine: StoredMessage) -> StoredMessage:
        """A message of the other store with the model's id and fence, if they fit what was seen of them before."""
        id_ = self.ids[message.id]
        if message.claim is None or mine.claim is None:
            return message._replace(id=id_)
        fence, theirs = mine.claim.fence, message.claim.fence
        if (id_, fence) not in self.fences:
            assert all(theirs > other for (known, _), other in self.fences.items() if known == id_)
            self.fences[id_, fence] = theirs
        assert self.fences[id_, fence] == theirs
        return message._replace(id=id_, claim=message.claim._replace(id=id_, fence=fence))

    def translate_receipt(self, receipt: Receipt) -> Receipt:
        superseded = tuple(self.ids[id_] for id_ in receipt.superseded)
        return receipt._replace(id=self.ids[receipt.id], superseded=superseded)

    # -- the verbs -----------------------------------------------------------------------------------------------

    @rule(planned=st.lists(line_plans, min_size=1, max_size=3))
    def put_in_line(self, planned: list[tuple[Draft, int | None, int | None]]) -> None:
        self._put(planned)

    def _put(self, planned: list[tuple[Draft, int | None, int | None]]) -> None:
        now = self.clock.now()
        drafts = [
            draft._replace(
                due=None if due is None else now + seconds(due),
                expires=None if expires is None else now + seconds(expires),
            )
            for draft, due, expires in planned
        ]
        mine, theirs = self.both(lambda store, _: store.put(self.box, drafts))
        self.compare()
        assert [self.translate_receipt(receipt) for receipt in theirs] == mine

    @precondition(lambda self: self.has(State.WAITING, State.CLAIMED))
    @rule(
        owner=owners,
        lease=leases,
        limit=st.sampled_from([1, 2, 3, 10]),
        ask=asks,
    )
    def claim(self, owner: UUID, lease: timedelta, limit: int, ask: int) -> None:
        self._claim(owner, lease, limit, self.asked[ask % len(self.asked)])

    @precondition(lambda self: self.has(State.WAITING, State.CLAIMED))
    @rule(backwards=st.booleans(), limit=st.sampled_from([1, 2]))
    def poll(self, backwards: bool, limit: int) -> None:
        """A worker of each topic looks for work."""
        for owner, topic in list(zip(OWNERS, TOPICS, strict=False))[:: -1 if backwards else 1]:
            self._claim(owner, seconds(10), limit, frozenset({topic}))

    def _claim(
        self, owner: UUID, lease: timedelta, limit: int, topics: frozenset[str] | None
    ) -> list[tuple[Claim, Claim]]:
        """Returns the new claims of both stores."""
        now = to_microseconds(self.clock.now())
        if self.box.order.fifo and self.shelf.has_lapsed(now):
            self._reap(ENOUGH)
        claimable = set() if self.shelf.doomed(self.box, now) else self.shelf.claimable(now, topics)
        fifo = self.box.order.fifo
        follows = fifo or self.keeps_places
        buries = follows and bool(self.shelf.doomed(self.box, now))
        # Which messages a claim buries before it comes to a suspect is a store's own choice.
        ask = Ask(owner, lease, ENOUGH if buries else limit, topics, suspects=not buries)
        theirs = self.sql.claim(self.box, ask)
        if follows:
            self.shelf.preferred = list(dict.fromkeys((fifo and m.group) or self.ids[m.id] for m in theirs))
        mine = self.model.claim(self.box, ask)
        if follows:  # the order between groups means nothing
            mine.sort(key=lambda message: message.id)
            theirs.sort(key=lambda message: message.id)
        assert len(mine) == len(theirs)
        assert [self.translate(message, like) for message, like in zip(theirs, mine, strict=True)] == mine
        assert len(mine) <= ask.limit
        self.compare()
        self.call += 1
        new: list[tuple[Claim, Claim]] = []
        for message, other in zip(mine, theirs, strict=True):
            assert message.claim is not None
            assert other.claim is not None
            assert message == self.seen[message.id]
            if topics is not None:
                assert message.topic in topics
            new.append((message.claim, other.claim))
            self.calls[message.id, message.claim.fence] = self.call
        self.claims += new
        if self.box.order.fifo:
            self.check_order(mine)
        if len(mine) < limit and len(mine) != 1:  # one message may be one that is claimed alone
            missing = claimable - {message.id for message in mine}
            assert not missing, f"{missing} can be claimed, but a claim of {topics} does not take it"
        return new

    def check_order(self, claimed: list[StoredMessage]) -> None:
        """Nobody was overtaken, except who is not due yet, has not come in, or has died in a box that goes on."""
        now = self.clock.now()
        taken = {message.id for message in claimed}
        blocking = {message.id for message in self.model.find(self.box, Filter(blocking=True, limit=1000))}
        for message in claimed:
            for other in self.seen.values():
                if other.group is None or other.group != message.group or other.id >= message.id or other.id in taken:
                    continue
                may_pass = {State.SEEN, State.DONE} | ({State.DEAD} if other.id not in blocking else set())
                not_due = other.state is State.WAITING and other.due is not None and other.due > now
                assert other.state in may_pass or not_due, f"{message} overtook {other}"

    @precondition(lambda self: self.has(State.CLAIMED))
    @rule(chosen=st.lists(st.tuples(verdicts, delays), min_size=8, max_size=8), backwards=st.booleans())
    def settle_all(self, chosen: list[tuple[str, timedelta | None]], backwards: bool) -> None:
        """As a worker does: an outcome for everything that is claimed."""
        pairs = self._current()[:: -1 if backwards else 1]
        self._settle([(pair, verdict, delay, "e") for pair, (verdict, delay) in zip(pairs, chosen, strict=False)])

    def _current(self) -> list[tuple[Claim, Claim]]:
        """The claims that hold, in the order in which they were made."""
        holding = {message.claim[:3] for message in self.seen.values() if message.claim is not None}
        return [pair for pair in self.claims if pair[0][:3] in holding]

    def _settle(self, outcomes: Sequence[tuple[Any, ...]]) -> None:
        def settlements(which: bool) -> list[Settlement]:
            return [_settlement(pair[which], *rest) for pair, *rest in outcomes]

        mine, theirs = self.both(lambda store, which: store.settle(self.box, settlements(which)))
        assert theirs == mine
        self.compare()

    def _pick(self, number: int) -> tuple[Claim, Claim]:
        """Any claim so far, but mostly one that holds."""
        choice = self.claims if number % 3 == 0 else self._current() or self.claims[-4:]
        return choice[number % len(choice)]

    @precondition(lambda self: self.claims)
    @rule(picks=st.lists(numbers, min_size=1, max_size=3), lease=leases)
    def renew(self, picks: list[int], lease: timedelta) -> None:
        pairs = [self._pick(number) for number in picks]
        mine, theirs = self.both(lambda store, which: store.renew(self.box, [pair[which] for pair in pairs], lease))
        assert theirs == mine
        self.compare()

    @precondition(lambda self: self.has(State.CLAIMED) or any(m.expires for m in self.seen.values()))
    @rule(limit=st.sampled_from([1, 2, 100]))
    def reap(self, limit: int) -> None:
        self._reap(limit)

    def _reap(self, limit: int) -> None:
        mine, theirs = self.both(lambda store, _: store.reap(self.box, limit))
        assert theirs == mine
        self.compare()

    @precondition(lambda self: self.has(State.DEAD))
    @rule(number=numbers)
    def replay_one(self, number: int) -> None:
        dead = [message for message in self.seen.values() if message.state is State.DEAD]
        message = dead[number % len(dead)]
        which = Filter(source=message.source, message_id=message.message_id)
        mine, theirs = self.both(lambda store, _: store.replay(self.box, which))
        assert theirs == mine
        self.compare()

    @precondition(lambda self: self.has(State.WAITING))
    @rule(number=numbers, by_id=st.booleans())
    def cancel_one(self, number: int, by_id: bool) -> None:
        waiting = [message for message in self.seen.values() if message.state is State.WAITING]
        message = waiting[number % len(waiting)]
        theirs = next(other for other, mine in self.ids.items() if mine == message.id)
        self._cancel(lambda sql: Filter(ids=(theirs if sql else message.id,)) if by_id else Filter(keys=(message.key,)))
        assert self.seen[message.id].ending is Ending.CANCELLED

    def _cancel(self, which: Callable[[bool], Filter]) -> None:
        mine, theirs = self.both(lambda store, sql: store.cancel(self.box, which(sql)))
        assert theirs == mine
        self.compare()

    @precondition(lambda self: self.box.order.on_dead == "block" and self.has(State.DEAD))
    @rule(number=numbers)
    def skip(self, number: int) -> None:
        """Let a group go on without its dead letter."""
        blocking = self.model.find(self.box, Filter(blocking=True, limit=1000))
        if blocking:
            key = blocking[number % len(blocking)].key
            mine, theirs = self.both(lambda store, _: store.mark(self.box, [key], "skipped"))
            assert theirs == mine
            self.compare()

    @rule(by=st.sampled_from([1, 4, 9, 30]))
    def time_passes(self, by: int) -> None:
        self.clock.advance(by)

    @precondition(lambda self: self.has(State.CLAIMED))
    @rule(number=numbers)
    def crash(self, number: int) -> None:
        """A worker forgets what it has claimed, and its leases end."""
        ends: dict[UUID, datetime] = {}
        for message in self.seen.values():
            if message.claim is not None:
                ends[message.claim.owner] = max(message.claim.until, ends.get(message.claim.owner, message.claim.until))
        owner = sorted(ends)[number % len(ends)]
        self.claims = [pair for pair in self.claims if pair[0].owner != owner]
        self.clock.advance(max(ends[owner] - self.clock.now(), timedelta()))

    # -- the end -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Workers, one of each topic, handle in turn all that is left."""
        entries = self.shelf.entries.values()
        now = to_microseconds(self.clock.now())
        last = max((entry.available_at for entry in entries if entry.available_at is not None), default=now)
        self.clock.advance(timedelta(microseconds=max(last - now, 0)))
        topics, idle = (*TOPICS, NO_TOPIC), 0
        while idle < 2 * len(topics):
            for owner, topic in zip(OWNERS, topics, strict=True):
                # What is doomed would keep suspects from being claimed here.
                doomed = [entry.draft.key for entry in self.shelf.doomed(self.box, to_microseconds(self.clock.now()))]
                self.model.mark(self.box, doomed, "dead")
                self.sql.mark(self.box, doomed, "dead")
                claims = self._claim(owner, seconds(5), 2, frozenset({topic}))
                if claims:
                    self._settle([(pair, "done", None, None) for pair in claims])
                idle = 0 if claims else idle + 1
        blocking = self.model.find(self.box, Filter(blocking=True, limit=1000))
        for message in self.seen.values():
            if message.state in {State.WAITING, State.CLAIMED}:
                blocked = any(dead.group == message.group and dead.id < message.id for dead in blocking)
                # What is doomed and has lost its key could not be marked, and keeps suspects from being claimed.
                blocked = blocked or bool(self.shelf.doomed(self.box, to_microseconds(self.clock.now())))
                assert blocked, f"{message} is stuck"

    # -- what must always hold -----------------------------------------------------------------------------------

    @invariant()
    def claimed_means_claim(self) -> None:
        for message in self.seen.values():
            assert (message.state is State.CLAIMED) == (message.claim is not None)

    @invariant()
    def one_claim_per_group(self) -> None:
        """The live leases in a FIFO group come from one call of claim."""
        if not self.box.order.fifo:
            return
        live: dict[str, set[tuple[UUID, int]]] = defaultdict(set)
        for message in self.seen.values():
            if message.group is not None and message.claim is not None and message.claim.until > self.clock.now():
                live[message.group].add((message.claim.owner, self.calls[message.id, message.claim.fence]))
        for group, holders in live.items():
            assert len(holders) == 1, f"group {group} is held by {holders}"


class Histories(Lines):
    """One history in one box of any kind, of every verb."""

    @initialize(box=st.sampled_from(BOXES), asked=st.just(ALL_ASKS))
    def choose(self, box: Box, asked: Asks) -> None:
        self.open_box(box, asked)

    @rule(planned=st.lists(plans(), min_size=1, max_size=4))
    def put(self, planned: list[tuple[Draft, int | None, int | None]]) -> None:
        self._put(planned)

    @rule(wanted=st.lists(st.tuples(keys, st.sampled_from([None, b"1", b"2"])), min_size=1, max_size=3))
    def record(self, wanted: list[tuple[Key, bytes | None]]) -> None:
        drafts = [Draft(*key, hash=hash_) for key, hash_ in wanted]
        mine, theirs = self.both(lambda store, _: store.record(self.box, drafts))
        assert theirs == mine
        self.compare()

    @precondition(lambda self: self.claims)
    @rule(
        picks=st.lists(st.tuples(numbers, verdicts, delays, errors), min_size=1, max_size=5),
        bare=st.lists(st.tuples(owners, message_ids, st.sampled_from([None, "a", "b"]), verdicts), max_size=2),
    )
    def settle(
        self,
        picks: list[tuple[int, str, timedelta | None, str | None]],
        bare: list[tuple[UUID, str, str | None, str]],
    ) -> None:
        self._settle(
            [(self._pick(number), *rest) for number, *rest in picks]
            + [((held := Held(owner, id_, source), held), verdict, None, None) for owner, id_, source, verdict in bare]
        )

    @precondition(lambda self: self.has(State.DEAD))
    @rule(which=filters | st.just(Filter(blocking=True)))
    def replay(self, which: Filter) -> None:
        mine, theirs = self.both(lambda store, _: store.replay(self.box, which))
        assert theirs == mine
        self.compare()

    @precondition(lambda self: self.has(State.WAITING))
    @rule(which=filters, named=st.none() | st.lists(keys, min_size=1, max_size=3).map(tuple))
    def cancel(self, which: Filter, named: tuple[Key, ...] | None) -> None:
        self._cancel(lambda _: which._replace(keys=named))

    @precondition(lambda self: len(self.seen) > 3)
    @rule(which=filters, states=st.sampled_from([None, UNFINISHED, frozenset({State.DEAD})]), after=numbers)
    def find(self, which: Filter, states: frozenset[State] | None, after: int) -> None:
        known = sorted(self.ids)
        after_theirs = known[after % len(known)] if known and after % 2 else 0
        pages = (self.ids.get(after_theirs, 0), after_theirs)
        mine, theirs = self.both(
            lambda store, sql: store.find(self.box, which._replace(states=states, after=pages[sql]))
        )
        assert len(mine) == len(theirs)
        assert [self.translate(message, like) for message, like in zip(theirs, mine, strict=True)] == mine

    @precondition(lambda self: self.has(State.DEAD))
    @rule()
    def find_blocking(self) -> None:
        which = Filter(states=frozenset({State.DEAD}), blocking=True)
        mine, theirs = self.both(lambda store, _: store.find(self.box, which))
        assert len(mine) == len(theirs)
        assert [self.translate(message, like) for message, like in zip(theirs, mine, strict=True)] == mine

    @precondition(lambda self: self.has(State.DONE, State.DEAD, State.SEEN))
    @rule(number=numbers, age=ages, limit=st.sampled_from([1, 2, ENOUGH]))
    def purge(self, number: int, age: timedelta, limit: int) -> None:
        present = [state for state in (State.DONE, State.DEAD, State.SEEN) if self.has(state)]
        state = present[number % len(present)]
        if self.keeps_places and state is State.DONE:
            limit = ENOUGH
        mine, theirs = self.both(lambda store, _: store.purge(self.box, Purge(state, age, limit)))
        assert theirs == mine
        self.compare(purged=True)

    @rule(
        wanted=st.lists(keys, min_size=1, max_size=2),
        mark=st.sampled_from(["processing", "processed", "dead", "skipped"]),
    )
    def mark(self, wanted: list[Key], mark: Any) -> None:
        mine, theirs = self.both(lambda store, _: store.mark(self.box, wanted, mark, error="marked"))
        assert theirs == mine
        self.compare()


def _answer(call: Callable[[Any, bool], Any], store: Any, sql: bool) -> Any:
    try:
        return call(store, sql)
    except AmbiguousMessageId:
        return AmbiguousMessageId


def _settlement(target: Any, verdict: Any, delay: timedelta | None, error: str | None) -> Settlement:
    if verdict == "dead":
        return Settlement.dead(target, error=error or "given up")
    return Settlement(target, verdict, None if verdict == "done" else delay, error if verdict == "retry" else None)


class OnPostgres(Lines):
    """On PostgreSQL, in boxes of its own."""

    keeps_places = True

    def open(self, clock: FrozenClock) -> Any:
        return open_store(shared_database(), colour="sync", clock=clock)


class OnRedis(Lines):
    """On Redis, in boxes of its own."""

    def open(self, clock: FrozenClock) -> Any:
        return open_at(server(), "sync", prefix=redis_prefix(), clock=clock)

    def client(self) -> Any:
        return redis_client()

    @invariant()
    def everything_stands_where_it_should(self) -> None:
        if self.seen:
            now, counts = to_microseconds(self.clock.now()), self.sql.counts(self.box)
            assert complaints(self.client(), redis_prefix(), self.box.key, counts=counts, now=now) == []


class OnCluster(OnRedis):
    """On a real cluster, and in the other colour."""

    def open(self, clock: FrozenClock) -> Any:
        return Awaited(open_at(cluster(), "async", prefix=redis_prefix(), clock=clock))

    def client(self) -> Any:
        return cluster_client()


class PostgresHistories(OnPostgres, Histories): ...


class RedisHistories(OnRedis, Histories): ...


class ClusterHistories(OnCluster, Histories): ...


class Awaited:
    """An async store with plain methods: each call runs until it is done."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._runner.run(getattr(self._store, name)(*args, **kwargs))

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._store.close())


@functools.cache
def redis_prefix() -> str:
    return new_prefix()


@functools.cache
def redis_client() -> redis.Redis:
    return redis.Redis.from_url(server())


@functools.cache
def cluster_client() -> Any:
    return redis.RedisCluster.from_url(cluster().replace("redis+cluster", "redis").partition(",")[0])


def _settings(histories: int) -> settings:
    return settings(
        max_examples=histories,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize="POSTROOM_HISTORIES" not in os.environ,  # a longer search is another one each time
        print_blob=True,
        phases=[Phase.generate],  # a failing history is short enough to read; to shorten it further takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


SHARES: dict[type[Lines], int] = {OnPostgres: POSTGRES_SHARE, OnCluster: CLUSTER_SHARE, OnRedis: REDIS_SHARE, Lines: 1}


def _test(machine: type[Lines]) -> Any:
    """The test of a machine, with as many histories as its store has time for."""
    share = next(share for kind, share in SHARES.items() if issubclass(machine, kind))
    case: Any = machine.TestCase
    case.settings = _settings(max(HISTORIES // share, 1))
    return pytest.mark.req("IBX-106", "OBX-095", "C-26", "C-46")(case)


TestHistories = _test(Histories)
TestPostgresHistories = _test(PostgresHistories)
TestRedisHistories = _test(RedisHistories)
TestClusterHistories = _test(ClusterHistories)
TestLines = _test(Lines)
TestPostgresLines = _test(OnPostgres)
TestRedisLines = _test(OnRedis)
