"""A history in one FIFO box, of the verbs that move its lines."""

from __future__ import annotations

import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postroom._stores.memory import SyncMemoryStore
from postroom._stores.sql.sqlite.connection import MEMORY
from postroom._stores.sql.sqlite.sqlite3_driver import Sqlite3Driver
from postroom._stores.sql.store import SyncSqlStore
from postroom.errors import AmbiguousMessageId
from postroom.spi import Box, Claim, ClaimRequest, Draft, Ending, Filter, Receipt, Settlement, State, StoredMessage
from postroom.testing import FrozenClock
from tests.histories.following import FollowingBox
from tests.histories.strategies import (
    ANY_TOPICS,
    BOXES,
    ENOUGH,
    EVERYTHING,
    LINE_BOXES,
    NO_TOPIC,
    ONE_TOPIC,
    OWNERS,
    TOPICS,
    TopicChoices,
    delays,
    leases,
    line_plans,
    numbers,
    owners,
    seconds,
    topic_choices,
    verdicts,
)


class Lines(RuleBasedStateMachine):
    """One history in one FIFO box. It has few verbs, so that they meet often."""

    keeps_places = False
    """Whether the other store differs from the model in two orders. It claims a message whose lease was lost by the
    time before the lease, not by the end of the lease. It purges messages with the same end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FrozenClock()
        self.model = SyncMemoryStore(clock=self.clock)
        self.other = self.open(self.clock)
        self.box = BOXES[0]
        self.topics = ANY_TOPICS
        """The topics for which claims are made."""
        self.box_state = FollowingBox()
        self.ids: dict[int, int] = {}
        """The other store's id → the model's: a store may leave numbers out."""
        self.fences: dict[tuple[int, int], int] = {}
        """The model's id and fence → the other store's fence: it must grow, by whatever steps."""
        self.seen: dict[int, StoredMessage] = {}
        """What the model showed after the last call."""
        self.claims: list[tuple[Claim, Claim]] = []
        """Every claim so far, the model's and the other store's. Most of them are stale."""
        self.calls: dict[tuple[int, int], int] = {}
        """(id, fence) → the call of claim that returned it."""
        self.call = 0

    def open(self, clock: FrozenClock) -> Any:
        """Returns the store that is compared with the model. Its boxes are empty."""
        return SyncSqlStore(Sqlite3Driver(MEMORY, clock=clock), deploy_schema=True, durable=False)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # a history that has failed is not continued
                self.drain()
        finally:
            self.other.close()

    @initialize(box=st.sampled_from(LINE_BOXES), topics=st.sampled_from([ANY_TOPICS, ONE_TOPIC, ONE_TOPIC]))
    def choose(self, box: Box, topics: TopicChoices) -> None:
        """With claims for single topics only, no claim can hide that another one missed a message."""
        self.open_box(box, topics)

    def open_box(self, box: Box, topics: TopicChoices) -> None:
        self.topics = topics
        self.box = replace(box, name=f"{box.name}-{secrets.token_hex(4)}")
        self.model._boxes[self.box.key] = self.box_state

    # -- comparing -----------------------------------------------------------------------------------------------

    def both(self, call: Callable[[Any, bool], Any]) -> tuple[Any, Any]:
        """Returns the results of both stores. An error of the protocol is a result too."""
        return _result(call, self.model, False), _result(call, self.other, True)

    def compare(self, *, purged: bool = False) -> None:
        expected, actual = self.both(lambda store, _: store.find(self.box, EVERYTHING))
        assert len(expected) == len(actual)
        for message, other in zip(expected, actual, strict=True):
            assert self.ids.setdefault(other.id, message.id) == message.id
            assert self.translate(other, message) == message
        counts, other_counts = self.both(lambda store, _: store.counts(self.box))
        assert counts == other_counts
        now = {message.id: message for message in expected}
        if not purged:
            assert self.seen.keys() <= now.keys(), "a message disappeared without a purge"
        for id_, before in self.seen.items():
            if before.state is State.DONE and id_ in now:
                assert now[id_].state is State.DONE, "a done message came back"
        self.seen = now

    def has(self, *states: State) -> bool:
        return any(message.state in states for message in self.seen.values())

    def translate(self, message: StoredMessage, expected: StoredMessage) -> StoredMessage:
        """Returns a message of the other store with the model's id and fence. They must agree with earlier calls."""
        id_ = self.ids[message.id]
        if message.claim is None or expected.claim is None:
            return message._replace(id=id_)
        fence, actual = expected.claim.fence, message.claim.fence
        if (id_, fence) not in self.fences:
            assert all(actual > other for (known, _), other in self.fences.items() if known == id_)
            self.fences[id_, fence] = actual
        assert self.fences[id_, fence] == actual
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
        expected, actual = self.both(lambda store, _: store.put(self.box, drafts))
        self.compare()
        assert [self.translate_receipt(receipt) for receipt in actual] == expected

    @precondition(lambda self: self.has(State.WAITING, State.CLAIMED))
    @rule(
        owner=owners,
        lease=leases,
        limit=st.sampled_from([1, 2, 3, 10]),
        request=topic_choices,
    )
    def claim(self, owner: UUID, lease: timedelta, limit: int, request: int) -> None:
        self._claim(owner, lease, limit, self.topics[request % len(self.topics)])

    @precondition(lambda self: self.has(State.WAITING, State.CLAIMED))
    @rule(backwards=st.booleans(), limit=st.sampled_from([1, 2]))
    def poll(self, backwards: bool, limit: int) -> None:
        """A worker of each topic claims."""
        for owner, topic in list(zip(OWNERS, TOPICS, strict=False))[:: -1 if backwards else 1]:
            self._claim(owner, seconds(10), limit, frozenset({topic}))

    def _claim(
        self, owner: UUID, lease: timedelta, limit: int, topics: frozenset[str] | None
    ) -> list[tuple[Claim, Claim]]:
        """Returns the new claims of both stores."""
        now = self.clock.now()
        if self.box.order.fifo and self.box_state.has_lapsed(now):
            self._reap(ENOUGH)
        claimable = set() if self.box_state.doomed(self.box, now) else self.box_state.claimable(now, topics)
        fifo = self.box.order.fifo
        follows = fifo or self.keeps_places
        buries = follows and bool(self.box_state.doomed(self.box, now))
        # A store may choose which messages a claim buries before it meets a suspect.
        request = ClaimRequest(owner, lease, ENOUGH if buries else limit, topics, suspects=not buries)
        actual = self.other.claim(self.box, request)
        if follows:
            self.box_state.preferred = list(dict.fromkeys((fifo and m.group) or self.ids[m.id] for m in actual))
        expected = self.model.claim(self.box, request)
        if follows:  # the order between groups means nothing
            expected.sort(key=lambda message: message.id)
            actual.sort(key=lambda message: message.id)
        assert len(expected) == len(actual)
        assert [self.translate(message, like) for message, like in zip(actual, expected, strict=True)] == expected
        assert len(expected) <= request.limit
        self.compare()
        self.call += 1
        new: list[tuple[Claim, Claim]] = []
        for message, other in zip(expected, actual, strict=True):
            assert message.claim is not None
            assert other.claim is not None
            assert message == self.seen[message.id]
            if topics is not None:
                assert message.topic in topics
            new.append((message.claim, other.claim))
            self.calls[message.id, message.claim.fence] = self.call
        self.claims += new
        if self.box.order.fifo:
            self.check_order(expected)
        if len(expected) < limit and len(expected) != 1:  # one message may be one that is claimed alone
            missing = claimable - {message.id for message in expected}
            assert not missing, f"{missing} can be claimed, but a claim of {topics} does not take it"
        return new

    def check_order(self, claimed: list[StoredMessage]) -> None:
        """No message was overtaken, except one that is not due, only seen, done, or dead without blocking its group."""
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
        """Settles everything that is claimed, as a worker does."""
        pairs = self._current()[:: -1 if backwards else 1]
        self._settle([(pair, verdict, delay, "e") for pair, (verdict, delay) in zip(pairs, chosen, strict=False)])

    def _current(self) -> list[tuple[Claim, Claim]]:
        """Returns the claims that hold, in the order in which they were made."""
        holding = {message.claim[:3] for message in self.seen.values() if message.claim is not None}
        return [pair for pair in self.claims if pair[0][:3] in holding]

    def _settle(self, outcomes: Sequence[tuple[Any, ...]]) -> None:
        def settlements(which: bool) -> list[Settlement]:
            return [_settlement(pair[which], *rest) for pair, *rest in outcomes]

        expected, actual = self.both(lambda store, which: store.settle(self.box, settlements(which)))
        assert actual == expected
        self.compare()

    def _pick(self, number: int) -> tuple[Claim, Claim]:
        """Returns any claim so far, but mostly one that holds."""
        choice = self.claims if number % 3 == 0 else self._current() or self.claims[-4:]
        return choice[number % len(choice)]

    @precondition(lambda self: self.claims)
    @rule(picks=st.lists(numbers, min_size=1, max_size=3), lease=leases)
    def renew(self, picks: list[int], lease: timedelta) -> None:
        pairs = [self._pick(number) for number in picks]
        expected, actual = self.both(lambda store, which: store.renew(self.box, [pair[which] for pair in pairs], lease))
        assert actual == expected
        self.compare()

    @precondition(lambda self: self.has(State.CLAIMED) or any(m.expires for m in self.seen.values()))
    @rule(limit=st.sampled_from([1, 2, 100]))
    def reap(self, limit: int) -> None:
        self._reap(limit)

    def _reap(self, limit: int) -> None:
        expected, actual = self.both(lambda store, _: store.reap(self.box, limit))
        assert actual == expected
        self.compare()

    @precondition(lambda self: self.has(State.DEAD))
    @rule(number=numbers)
    def replay_one(self, number: int) -> None:
        dead = [message for message in self.seen.values() if message.state is State.DEAD]
        message = dead[number % len(dead)]
        which = Filter(source=message.source, message_id=message.message_id)
        expected, actual = self.both(lambda store, _: store.replay(self.box, which))
        assert actual == expected
        self.compare()

    @precondition(lambda self: self.has(State.WAITING))
    @rule(number=numbers, by_id=st.booleans())
    def cancel_one(self, number: int, by_id: bool) -> None:
        waiting = [message for message in self.seen.values() if message.state is State.WAITING]
        message = waiting[number % len(waiting)]
        actual = next(other for other, expected in self.ids.items() if expected == message.id)
        self._cancel(
            lambda is_other: Filter(ids=(actual if is_other else message.id,)) if by_id else Filter(keys=(message.key,))
        )
        assert self.seen[message.id].ending is Ending.CANCELLED

    def _cancel(self, which: Callable[[bool], Filter]) -> None:
        expected, actual = self.both(lambda store, is_other: store.cancel(self.box, which(is_other)))
        assert actual == expected
        self.compare()

    @precondition(lambda self: self.box.order.on_dead == "block" and self.has(State.DEAD))
    @rule(number=numbers)
    def skip(self, number: int) -> None:
        """Unblocks a group that a dead letter blocks."""
        blocking = self.model.find(self.box, Filter(blocking=True, limit=1000))
        if blocking:
            key = blocking[number % len(blocking)].key
            expected, actual = self.both(lambda store, _: store.mark(self.box, [key], "skipped"))
            assert actual == expected
            self.compare()

    @rule(by=st.sampled_from([1, 4, 9, 30]))
    def time_passes(self, by: int) -> None:
        self.clock.advance(by)

    @precondition(lambda self: self.has(State.CLAIMED))
    @rule(number=numbers)
    def crash(self, number: int) -> None:
        """A worker stops without an outcome, and its leases end."""
        ends: dict[UUID, datetime] = {}
        for message in self.seen.values():
            if message.claim is not None:
                ends[message.claim.owner] = max(message.claim.until, ends.get(message.claim.owner, message.claim.until))
        owner = sorted(ends)[number % len(ends)]
        self.claims = [pair for pair in self.claims if pair[0].owner != owner]
        self.clock.advance(max(ends[owner] - self.clock.now(), timedelta()))

    # -- the end -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Workers, one of each topic, handle in turn all that is left. Nothing may be stuck."""
        entries = self.box_state.entries.values()
        now = self.clock.now()
        last = max((entry.available_at for entry in entries if entry.available_at is not None), default=now)
        self.clock.advance(max(last - now, timedelta()))
        topics, idle = (*TOPICS, NO_TOPIC), 0
        while idle < 2 * len(topics):
            for owner, topic in zip(OWNERS, topics, strict=True):
                # What is doomed would keep suspects from being claimed here.
                doomed = [entry.draft.key for entry in self.box_state.doomed(self.box, self.clock.now())]
                self.model.mark(self.box, doomed, "dead")
                self.other.mark(self.box, doomed, "dead")
                claims = self._claim(owner, seconds(5), 2, frozenset({topic}))
                if claims:
                    self._settle([(pair, "done", None, None) for pair in claims])
                idle = 0 if claims else idle + 1
        blocking = self.model.find(self.box, Filter(blocking=True, limit=1000))
        for message in self.seen.values():
            if message.state in {State.WAITING, State.CLAIMED}:
                blocked = any(dead.group == message.group and dead.id < message.id for dead in blocking)
                # What is doomed and has lost its key could not be marked, and keeps suspects from being claimed.
                blocked = blocked or bool(self.box_state.doomed(self.box, self.clock.now()))
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


def _result(call: Callable[[Any, bool], Any], store: Any, is_other: bool) -> Any:
    try:
        return call(store, is_other)
    except AmbiguousMessageId:
        return AmbiguousMessageId


def _settlement(target: Any, verdict: Any, delay: timedelta | None, error: str | None) -> Settlement:
    if verdict == "dead":
        return Settlement.dead(target, error=error or "given up")
    return Settlement(target, verdict, None if verdict == "done" else delay, error if verdict == "retry" else None)
