"""Joins, for stores with `features.joins`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom.errors import JoinEnded, JoinFull, JoinNotFound, MessageNotFound
from postroom.spi import (
    Claim,
    ClaimRequest,
    Draft,
    Ending,
    Filter,
    Join,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinStep,
    JoinStore,
    JoinWait,
    Key,
    Purge,
    Receipt,
    ReceiptStatus,
    Retention,
    Settlement,
    State,
    StepStatus,
    Store,
    StoredMessage,
)
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    SOURCE,
    BoxUnderTest,
    Elapse,
    Now,
    OpenBox,
    Suite,
    Transaction,
    claim_of,
    draft,
    names,
    needs,
    seconds,
)

DONE = FollowUp("all.done", "yes", "text")
FAILED = FollowUp("some.failed", b"no", "bytes")


class JoinsUnderTest:
    """The joins of a box under test, with short calls of their verbs."""

    def __init__(self, box: BoxUnderTest) -> None:
        assert isinstance(box.store, JoinStore)
        self.of = box
        self.box = box.box
        self.store = box.store

    async def start(self, expected: int | None = 1, **fields: Any) -> UUID:
        id_ = uuid4()
        await self.store.start_join(self.box, JoinDraft(id_, "acme", expected, **fields))
        return id_

    async def put(self, join: UUID | None, *message_ids: str, **fields: Any) -> list[Receipt]:
        return await self.of.put(*(draft(id_, join=join, **fields) for id_ in message_ids))

    async def wait(
        self,
        join: UUID,
        *,
        fails: bool = True,
        on_complete: FollowUp | None = DONE,
        on_fail: FollowUp | None = FAILED,
        **options: Any,
    ) -> Receipt:
        wait = JoinWait(join, fails, on_complete, on_fail)
        continuation = Draft(SOURCE, str(join), WAIT_TOPIC, on_duplicate="reject")
        return await self.store.put_wait(self.box, continuation, wait, **options)

    async def get(self, join: UUID) -> Join:
        [found] = await self.store.find_joins(self.box, JoinFilter(ids=(join,)))
        return found

    async def counts(self, join: UUID) -> tuple[JoinStatus, int, int]:
        found = await self.get(join)
        return found.status, found.completed_steps, found.failed_steps

    async def steps(self, join: UUID) -> dict[str | None, StepStatus]:
        found = await self.store.find_steps(self.box, join)
        assert all(isinstance(step, JoinStep) for step in found)
        return {step.message_id: step.status for step in found}

    async def claim(self, *topics: str, limit: int = 100) -> dict[str, StoredMessage]:
        """Claims messages; returns them by message id."""
        claimed = await self.of.claim(limit, topics=set(topics) or None)
        return {message.message_id: message for message in claimed}

    async def run(self, *, failing: tuple[str, ...] = ()) -> list[str]:
        """Handles all that can be claimed. Returns the topics of continuations, in order."""
        sent: list[str] = []
        while claimed := await self.claim():
            for message in claimed.values():
                if message.topic in {DONE.topic, FAILED.topic}:
                    sent.append(message.topic)
                assert message.topic != WAIT_TOPIC
                await (self.of.fail(message) if message.message_id in failing else self.of.ack(message))
        return sent


class JoinConformance(Suite):
    """Stores with `features.joins`."""

    @pytest.fixture
    def joins(self, store: Store, open_box: OpenBox) -> JoinsUnderTest:
        needs(store.features.joins, "joins")
        return JoinsUnderTest(open_box("outbox"))

    # -- start, attach, get ----------------------------------------------------------------------------------------

    async def test_a_new_join(self, joins: JoinsUnderTest, now: Now) -> None:
        began = await now()
        deadline = began + seconds(3600)
        id_ = await joins.start(3, metadata='{"phase": "extract"}', deadline=deadline)
        join = await joins.get(id_)
        assert join.id == id_
        assert (join.tenant_id, join.expected_steps, join.metadata) == ("acme", 3, '{"phase": "extract"}')
        assert (join.status, join.attached_steps, join.completed_steps, join.failed_steps) == ("pending", 0, 0, 0)
        assert (join.is_sealed, join.deadline) == (False, deadline)
        assert began <= join.created_at == join.updated_at <= await now()
        assert await joins.steps(id_) == {}

    async def test_starting_a_join_again_changes_nothing(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1")
        await joins.store.start_join(joins.box, JoinDraft(join, "other", 5))
        found = await joins.get(join)
        assert (found.tenant_id, found.expected_steps, found.attached_steps) == ("acme", 2, 1)

    async def test_attached_messages_are_steps(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(3)
        receipts = await joins.put(None, "1", "2")
        assert await joins.store.attach_steps(joins.box, join, [receipts[0].id, Key(SOURCE, "2")]) == [True, True]
        assert await joins.steps(join) == {"1": StepStatus.PENDING, "2": StepStatus.PENDING}
        assert (await joins.get(join)).attached_steps == 2

    async def test_attaching_again_changes_nothing(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        [receipt] = await joins.put(None, "1")
        assert await joins.store.attach_steps(joins.box, join, [receipt.id, receipt.id]) == [True, False]
        assert await joins.store.attach_steps(joins.box, join, [receipt.id]) == [False]
        assert (await joins.get(join)).attached_steps == 1

    async def test_enqueued_messages_are_steps(self, joins: JoinsUnderTest) -> None:
        first, second = await joins.start(2), await joins.start(1)
        await joins.of.put(draft("1", join=first), draft("2", join=second), draft("3"), draft("4", join=first))
        assert list(await joins.steps(first)) == ["1", "4"]
        assert list(await joins.steps(second)) == ["2"]

    async def test_a_known_message_becomes_the_step(self, joins: JoinsUnderTest) -> None:
        await joins.of.finish(draft("done"))
        await joins.put(None, "waiting")
        join = await joins.start(2)
        receipts = await joins.put(join, "done", "waiting")
        assert [receipt.status for receipt in receipts] == [ReceiptStatus.DONE, ReceiptStatus.DUPLICATE]
        assert await joins.steps(join) == {"done": StepStatus.COMPLETED, "waiting": StepStatus.PENDING}

    async def test_steps_that_have_ended_count_at_once(self, joins: JoinsUnderTest) -> None:
        [done] = await joins.of.finish(draft("done"))
        [dead] = await joins.of.bury(draft("dead"))
        join = await joins.start(2)
        await joins.wait(join)
        await joins.store.attach_steps(joins.box, join, [done.id, dead.id])
        assert await joins.counts(join) == (JoinStatus.FAILED, 1, 1)
        assert await joins.run() == [FAILED.topic]

    async def test_more_steps_than_expected_are_refused(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.put(join, "1")
        with pytest.raises(JoinFull):
            await joins.put(join, "2")
        assert await joins.of.find(message_id="2") == []
        [receipt] = await joins.put(None, "3")
        with pytest.raises(JoinFull):
            await joins.store.attach_steps(joins.box, join, [receipt.id])
        assert await joins.steps(join) == {"1": StepStatus.PENDING}

    async def test_what_is_not_there(self, joins: JoinsUnderTest, open_box: OpenBox) -> None:
        join, store, box = await joins.start(5), joins.store, joins.box
        elsewhere = open_box("outbox", "other")
        other = await elsewhere.put_one(draft("1"))
        for step in (other.id, Key(SOURCE, "1"), 10**12):
            with pytest.raises(MessageNotFound):
                await store.attach_steps(box, join, [step])
        mine = await joins.of.put_one(draft("mine"))
        with pytest.raises(MessageNotFound):
            await store.attach_steps(box, join, [mine.id, other.id])
        with pytest.raises(MessageNotFound):
            await store.report_step(box, join, mine.id, failed=False)
        assert await joins.steps(join) == {}
        for where, id_ in ((box, uuid4()), (elsewhere.box, join)):
            with pytest.raises(JoinNotFound):
                await store.attach_steps(where, id_, [mine.id])
            with pytest.raises(JoinNotFound):
                await store.report_step(where, id_, mine.id, failed=False)
            with pytest.raises(JoinNotFound):
                await store.put(where, [draft("new", join=id_)])
            with pytest.raises(JoinNotFound):
                await store.put_wait(where, Draft(SOURCE, "w", WAIT_TOPIC), JoinWait(id_))
            with pytest.raises(JoinNotFound):
                await store.seal_join(where, id_)
            with pytest.raises(JoinNotFound):
                await store.cancel_join(where, id_)
            with pytest.raises(JoinNotFound):
                await store.find_steps(where, id_)
            assert await store.find_joins(where, JoinFilter(ids=(id_,))) == []
        assert await joins.of.find(message_id="new") == []
        assert await joins.of.find(message_id="w") == []

    async def test_joins_are_listed_in_pages(self, joins: JoinsUnderTest) -> None:
        ids = [await joins.start(None) for _ in range(5)]
        await joins.store.start_join(joins.box, JoinDraft(uuid4(), "other", 1))
        await joins.store.cancel_join(joins.box, ids[1])
        await joins.store.seal_join(joins.box, ids[2])

        async def listed(**fields: Any) -> list[UUID]:
            return [join.id for join in await joins.store.find_joins(joins.box, JoinFilter(**fields))]

        assert await listed(tenant_id="acme") == ids
        assert await listed(limit=2) == ids[:2]
        second = (await joins.get(ids[1])).number
        assert await listed(tenant_id="acme", after=second) == ids[2:]
        assert await listed(statuses=frozenset({JoinStatus.CANCELLED})) == [ids[1]]
        assert await listed(statuses=frozenset({JoinStatus.COMPLETED})) == [ids[2]]
        assert await listed(tenant_id="acme", statuses=frozenset({JoinStatus.PENDING}), limit=2) == [ids[0], ids[3]]
        assert await listed(tenant_id="nobody") == []

    async def test_steps_are_listed_in_pages(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(5)
        receipts = await joins.put(join, *"12345")
        page = await joins.store.find_steps(joins.box, join, limit=2)
        assert [step.id for step in page] == [receipt.id for receipt in receipts[:2]]
        assert [(step.source, step.message_id) for step in page] == [(SOURCE, "1"), (SOURCE, "2")]
        rest = await joins.store.find_steps(joins.box, join, after=page[-1].id)
        assert [step.message_id for step in rest] == ["3", "4", "5"]

    # -- the continuation ------------------------------------------------------------------------------------------

    async def test_the_continuation_follows_the_last_step(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(3)
        await joins.put(join, *"123")
        receipt = await joins.wait(join)
        assert (receipt.status, receipt.state) == (ReceiptStatus.NEW, State.WAITING)
        claimed = await joins.claim()
        assert list(claimed) == ["1", "2", "3"]
        for number, (name, message) in enumerate(claimed.items(), 1):
            assert await joins.counts(join) == (JoinStatus.PENDING, number - 1, 0)
            assert await joins.claim() == {}
            await joins.of.ack(message)
            assert (await joins.steps(join))[name] is StepStatus.COMPLETED
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 3, 0)
        [continuation] = (await joins.claim()).values()
        assert continuation.id == receipt.id
        assert (continuation.topic, continuation.payload, continuation.format) == DONE
        assert (continuation.attempt, continuation.deliveries) == (0, 1)
        await joins.of.ack(continuation)
        assert await joins.run() == []
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 3, 0)

    async def test_steps_that_end_in_one_settlement(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(4)
        await joins.put(join, *"1234")
        await joins.wait(join)
        await joins.of.ack(*(await joins.claim()).values())
        assert await joins.run() == [DONE.topic]

    @pytest.mark.parametrize("order", ["1234", "4321", "2413"])
    async def test_steps_that_end_in_any_order(self, joins: JoinsUnderTest, order: str) -> None:
        join = await joins.start(4)
        await joins.put(join, *"1234")
        claimed = await joins.claim()
        await joins.wait(join)
        for name in order:
            assert await joins.claim() == {}
            await joins.of.ack(claimed[name])
        assert await joins.run() == [DONE.topic]

    async def test_a_wait_that_comes_last(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        assert await joins.run() == []
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 1, 0)
        await joins.wait(join)
        assert await joins.run() == [DONE.topic]

    async def test_a_wait_that_comes_first(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.wait(join)
        assert await joins.run() == []
        await joins.put(join, "1")
        assert await joins.run() == []
        await joins.put(join, "2")
        assert await joins.run() == [DONE.topic]

    async def test_a_second_wait_changes_nothing(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        first = await joins.wait(join)
        again = await joins.wait(join, on_complete=FollowUp("other", "", "text"))
        assert (again.status, again.id) == (ReceiptStatus.DUPLICATE, first.id)
        await joins.put(join, "1")
        assert await joins.run() == [DONE.topic]
        assert (await joins.wait(join)).status is ReceiptStatus.DONE
        assert await joins.run() == []

    async def test_a_second_wait_after_the_deduplication_window(
        self, store: Store, open_box: OpenBox, elapse: Elapse
    ) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", retention=Retention(dedup_window=seconds(60))))
        join = await joins.start(1)
        await joins.put(join, "1")
        first = await joins.wait(join)
        await elapse(120)
        again = await joins.wait(join)
        assert (again.status, again.id) == (ReceiptStatus.DUPLICATE, first.id)
        assert await joins.run() == [DONE.topic]
        assert (await joins.wait(join)).status is ReceiptStatus.DONE
        assert await joins.run() == []

    async def test_a_full_join_after_the_deduplication_window(
        self, store: Store, open_box: OpenBox, elapse: Elapse
    ) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", retention=Retention(dedup_window=seconds(60))))
        join = await joins.start(1)
        await joins.put(join, "1")
        await elapse(120)
        with pytest.raises(JoinFull):
            await joins.put(join, "1")
        assert len(await joins.of.find()) == 1

    async def test_a_claim_of_any_topic_ends_the_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [step] = (await joins.claim("order")).values()
        await joins.of.ack(step)
        assert await joins.claim("order") == {}
        assert list(await joins.claim(DONE.topic)) == [str(join)]

    async def test_the_continuation_is_retried_like_any_message(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [step] = (await joins.claim()).values()
        await joins.of.ack(step)
        [first] = (await joins.claim()).values()
        await joins.of.retry(first, delay=seconds(0), error="boom")
        [second] = (await joins.claim()).values()
        assert (second.topic, second.payload, second.attempt) == (DONE.topic, DONE.payload, 1)

    async def test_an_exchange_ends_the_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join)
        claimed = await joins.of.claim(10)
        assert await joins.claim() == {}
        settlements = [Settlement.done(claim_of(message)) for message in claimed]
        exchange = getattr(joins.store, "exchange", None)
        if exchange is None:
            pytest.skip("this store is not an Exchanger")
        settled, messages = await exchange(joins.box, settlements, ClaimRequest(ALICE, seconds(LEASE), 10))
        assert settled == [True, True]
        assert [message.topic for message in messages] == [DONE.topic]

    async def test_fifo(self, store: Store, open_box: OpenBox) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", fifo=True))
        join = await joins.start(4)
        await joins.put(join, "1", "2", group="a")
        await joins.put(join, "3", "4", group="b")
        await joins.wait(join)
        assert await joins.run(failing=("3",)) == [FAILED.topic]
        assert await joins.counts(join) == (JoinStatus.FAILED, 3, 1)

    # -- failure ---------------------------------------------------------------------------------------------------

    async def test_a_failed_step_fails_the_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(3)
        await joins.put(join, *"123")
        await joins.wait(join)
        claimed = await joins.claim()
        await joins.of.fail(claimed["2"])
        assert await joins.counts(join) == (JoinStatus.PENDING, 0, 1)
        assert await joins.claim() == {}
        await joins.of.ack(claimed["1"], claimed["3"])
        assert await joins.counts(join) == (JoinStatus.FAILED, 2, 1)
        [continuation] = (await joins.claim()).values()
        assert (continuation.topic, continuation.payload, continuation.format) == FAILED

    async def test_a_failed_step_does_not_matter(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join, fails=False)
        assert await joins.run(failing=("2",)) == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 1, 1)

    async def test_a_step_that_is_tried_again_is_pending(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [first] = (await joins.claim()).values()
        await joins.of.retry(first, delay=seconds(0))
        [second] = (await joins.claim()).values()
        await joins.of.release(second)
        [third] = (await joins.claim()).values()
        await elapse(LEASE + 1)
        [fourth] = (await joins.claim()).values()
        assert await joins.of.ack(third) == [False]
        assert await joins.counts(join) == (JoinStatus.PENDING, 0, 0)
        await joins.of.ack(fourth)
        assert await joins.run() == [DONE.topic]

    async def test_completed_without_a_follow_up(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join, on_complete=None)
        assert await joins.run() == []
        continuation = await joins.of.get(str(join))
        assert (continuation.state, continuation.ending) == (State.DONE, Ending.JOINED)
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 1, 0)

    async def test_failed_without_a_follow_up(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join, on_fail=None)
        assert await joins.run(failing=("1",)) == []
        continuation = await joins.of.get(str(join))
        assert (continuation.state, continuation.attempt) == (State.DEAD, 0)
        assert continuation.last_error == "the join failed: 1 of 2 steps failed"
        assert await joins.counts(join) == (JoinStatus.FAILED, 1, 1)

    async def test_a_failed_join_is_replayed(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join, on_fail=None)
        await joins.run(failing=("1",))
        replayed = await joins.store.replay(joins.box, Filter(states=frozenset({State.DEAD})))
        assert {key.message_id for key in replayed} == {"1", str(join)}
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 2, 0)

    async def test_replay_of_a_step_while_the_join_is_pending(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join)
        claimed = await joins.claim()
        await joins.of.fail(claimed["1"])
        assert await joins.claim() == {}
        await joins.store.replay(joins.box, Filter(states=frozenset({State.DEAD})))
        assert await joins.steps(join) == {"1": StepStatus.PENDING, "2": StepStatus.PENDING}
        await joins.of.ack(claimed["2"])
        assert await joins.counts(join) == (JoinStatus.PENDING, 1, 0)
        assert await joins.run() == [DONE.topic]

    async def test_replay_of_a_step_after_the_end(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.run(failing=("1",)) == [FAILED.topic]
        await joins.store.replay(joins.box, Filter(states=frozenset({State.DEAD})))
        assert await joins.run() == []
        assert await joins.counts(join) == (JoinStatus.FAILED, 0, 1)

    # -- other ends of a step --------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("mark", "follows"), [("processed", DONE.topic), ("dead", FAILED.topic)])
    async def test_a_marked_step(self, joins: JoinsUnderTest, mark: Any, follows: str) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [_] = (await joins.claim()).values()
        await joins.store.mark(joins.box, [Key(SOURCE, "1")], mark)
        assert await joins.run() == [follows]

    async def test_a_cancelled_step_has_failed(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.claim("none") == {}
        await joins.store.cancel(joins.box, Filter(keys=(Key(SOURCE, "1"),)))
        assert await joins.steps(join) == {"1": StepStatus.FAILED}
        assert await joins.run() == [FAILED.topic]

    async def test_an_expired_step_has_failed(self, joins: JoinsUnderTest, now: Now, elapse: Elapse) -> None:
        join = await joins.start(1)
        await joins.put(join, "1", expires=await now() + seconds(10))
        await joins.wait(join)
        assert await joins.claim("none") == {}
        await elapse(11)
        assert await joins.run() == [FAILED.topic]

    async def test_a_discarded_step_has_failed(self, store: Store, open_box: OpenBox) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", retention=Retention(dead_letter="discard")))
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.run(failing=("1",)) == [FAILED.topic]

    async def test_a_step_whose_content_is_erased(self, store: Store, open_box: OpenBox) -> None:
        needs(store.features.joins, "joins")
        joins = JoinsUnderTest(open_box("outbox", retention=Retention(on_success="delete")))
        join = await joins.start(2)
        await joins.put(join, "1", "2")
        await joins.wait(join)
        assert await joins.run() == [DONE.topic]

    async def test_a_newer_message_takes_the_place_of_a_step(self, joins: JoinsUnderTest) -> None:
        needs(joins.of.store.features.collapse, "collapse")
        join = await joins.start(1)
        await joins.put(join, "old", collapse_key="k")
        await joins.wait(join)
        assert await joins.claim("none") == {}
        await joins.put(None, "new", collapse_key="k")
        assert await joins.steps(join) == {"new": StepStatus.PENDING}
        assert await joins.claim("none") == {}
        assert await joins.run() == [DONE.topic]

    async def test_a_newer_step_of_the_same_join(self, joins: JoinsUnderTest) -> None:
        needs(joins.of.store.features.collapse, "collapse")
        join = await joins.start(2)
        await joins.put(join, "a", collapse_key="c")
        await joins.put(join, "b", collapse_key="c")
        assert await joins.steps(join) == {"a": StepStatus.COMPLETED, "b": StepStatus.PENDING}
        await joins.wait(join)
        assert await joins.claim("none") == {}
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 2, 0)

    async def test_purged_steps_keep_their_status(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        join = await joins.start(3)
        await joins.put(join, "done", "dead")
        await joins.wait(join, fails=False)
        await joins.run(failing=("dead",))
        await elapse(10)
        for state in (State.DONE, State.DEAD):
            assert await joins.store.purge(joins.box, Purge(state, seconds(1))) == 1
        assert await joins.counts(join) == (JoinStatus.PENDING, 1, 1)
        assert list(await joins.steps(join)) == [None]
        await joins.put(join, "last")
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 2, 1)

    async def test_ended_joins_are_purged(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        ended, pending = await joins.start(1), await joins.start(1)
        await joins.put(ended, "1")
        await joins.wait(ended)
        await joins.run()
        await elapse(10)
        await joins.store.purge(joins.box, Purge(State.DONE, seconds(60)))
        assert (await joins.get(ended)).status is JoinStatus.COMPLETED
        await elapse(60)
        while await joins.store.purge(joins.box, Purge(State.DONE, seconds(60))):
            pass
        assert [join.id for join in await joins.store.find_joins(joins.box, JoinFilter())] == [pending]
        with pytest.raises(JoinNotFound):
            await joins.store.find_steps(joins.box, ended)

    # -- reports ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("failed", [False, True])
    async def test_a_report_counts_once(self, joins: JoinsUnderTest, failed: bool) -> None:
        join = await joins.start(2)
        first, second = await joins.put(join, "1", "2")
        await joins.wait(join)
        claimed = await joins.claim()
        assert await joins.store.report_step(joins.box, join, first.id, failed=failed) is True
        assert await joins.store.report_step(joins.box, join, Key(SOURCE, "1"), failed=not failed) is False
        assert await joins.counts(join) == (JoinStatus.PENDING, int(not failed), int(failed))
        assert await joins.store.report_step(joins.box, join, second.id, failed=failed) is True
        [continuation] = (await joins.claim()).values()
        assert continuation.topic == (FAILED if failed else DONE).topic
        await joins.of.ack(*claimed.values(), continuation)
        assert await joins.run() == []
        assert await joins.counts(join) == ((JoinStatus.FAILED, 0, 2) if failed else (JoinStatus.COMPLETED, 2, 0))

    async def test_a_report_after_the_end_of_the_message(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(3)
        done, dead = await joins.put(join, "done", "dead")
        await joins.run(failing=("dead",))
        assert await joins.store.report_step(joins.box, join, done.id, failed=True) is False
        assert await joins.store.report_step(joins.box, join, dead.id, failed=False) is False
        assert await joins.counts(join) == (JoinStatus.PENDING, 1, 1)

    # -- open joins, deadline, cancel ------------------------------------------------------------------------------

    async def test_an_open_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(None)
        await joins.wait(join)
        await joins.put(join, "1")
        assert await joins.run() == []
        await joins.put(join, "2", "3")
        assert await joins.store.seal_join(joins.box, join) is True
        assert await joins.store.seal_join(joins.box, join) is False
        with pytest.raises(JoinEnded):
            await joins.put(join, "4")
        assert await joins.run() == [DONE.topic]
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 3, 0)

    async def test_an_open_join_that_is_sealed_last(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(None)
        await joins.wait(join)
        await joins.put(join, "1")
        assert await joins.run() == []
        await joins.store.seal_join(joins.box, join)
        assert await joins.run() == [DONE.topic]

    async def test_an_open_join_without_steps(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(None)
        await joins.wait(join)
        assert await joins.run() == []
        await joins.store.seal_join(joins.box, join)
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 0, 0)
        assert await joins.run() == [DONE.topic]

    async def test_a_join_with_expected_steps_is_not_sealed(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        with pytest.raises(JoinEnded):
            await joins.store.seal_join(joins.box, join)

    async def test_a_join_that_misses_its_deadline(self, joins: JoinsUnderTest, now: Now, elapse: Elapse) -> None:
        join = await joins.start(2, deadline=await now() + seconds(60))
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.run() == []
        await elapse(59)
        assert await joins.run() == []
        await elapse(2)
        assert await joins.counts(join) == (JoinStatus.FAILED, 1, 0)
        assert await joins.run() == [FAILED.topic]
        with pytest.raises(JoinEnded):
            await joins.put(join, "2")

    async def test_a_deadline_while_a_step_is_pending(self, joins: JoinsUnderTest, now: Now, elapse: Elapse) -> None:
        join = await joins.start(1, deadline=await now() + seconds(10))
        await joins.put(join, "1")
        await joins.wait(join, on_fail=None)
        [step] = (await joins.claim()).values()
        await elapse(11)
        assert await joins.claim() == {}
        assert (await joins.of.get(str(join))).last_error == (
            "the join failed: its deadline has passed, and 0 of its steps have ended"
        )
        await joins.of.ack(step)
        assert await joins.run() == []
        assert await joins.counts(join) == (JoinStatus.FAILED, 0, 0)

    async def test_a_join_that_meets_its_deadline(self, joins: JoinsUnderTest, now: Now, elapse: Elapse) -> None:
        join = await joins.start(1, deadline=await now() + seconds(10))
        await joins.put(join, "1")
        await joins.wait(join)
        [step] = (await joins.claim()).values()
        await joins.of.ack(step)
        await elapse(11)
        assert await joins.run() == [DONE.topic]

    async def test_a_cancelled_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(2)
        await joins.put(join, "1")
        await joins.wait(join)
        assert await joins.store.cancel_join(joins.box, join) is True
        assert await joins.store.cancel_join(joins.box, join) is False
        continuation = await joins.of.get(str(join))
        assert (continuation.state, continuation.ending) == (State.DONE, Ending.CANCELLED)
        assert await joins.run() == []
        assert await joins.of.state("1") is State.DONE
        assert (await joins.get(join)).status is JoinStatus.CANCELLED
        with pytest.raises(JoinEnded):
            await joins.put(join, "2")
        assert await joins.of.find(message_id="2") == []

    async def test_a_wait_for_a_cancelled_join(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.store.cancel_join(joins.box, join)
        with pytest.raises(JoinEnded):
            await joins.wait(join)
        assert await joins.of.find() == []

    async def test_cancel_after_the_end(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        await joins.run()
        assert await joins.store.cancel_join(joins.box, join) is False
        assert await joins.counts(join) == (JoinStatus.COMPLETED, 1, 0)

    # -- several joins ---------------------------------------------------------------------------------------------

    async def test_one_message_in_ten_joins(self, joins: JoinsUnderTest) -> None:
        ids = [await joins.start(1) for _ in range(10)]
        [receipt] = await joins.put(None, "1")
        for join in ids:
            await joins.store.attach_steps(joins.box, join, [receipt.id])
            await joins.wait(join)
        [step] = (await joins.claim()).values()
        assert await joins.claim() == {}
        await joins.of.ack(step)
        assert await joins.run() == [DONE.topic] * 10

    async def test_joins_nest(self, joins: JoinsUnderTest) -> None:
        outer, middle, inner = await joins.start(1), await joins.start(2), await joins.start(2)
        await joins.wait(outer)
        for above, below in ((outer, middle), (middle, inner)):
            receipt = await joins.wait(below)
            await joins.store.attach_steps(joins.box, above, [receipt.id])
        await joins.put(middle, "m")
        await joins.put(inner, "1", "2")
        order: list[str] = []
        while claimed := await joins.claim(limit=1):
            [message] = claimed.values()
            order.append(message.message_id)
            await joins.of.ack(message)
        assert sorted(order[:3]) == ["1", "2", "m"]
        assert order[3:] == [str(inner), str(middle), str(outer)]

    async def test_a_nested_join_that_fails(self, joins: JoinsUnderTest) -> None:
        outer, inner = await joins.start(1), await joins.start(1)
        await joins.wait(outer)
        receipt = await joins.wait(inner, on_fail=None)
        await joins.store.attach_steps(joins.box, outer, [receipt.id])
        await joins.put(inner, "1")
        assert await joins.run(failing=("1",)) == [FAILED.topic]
        assert await joins.counts(outer) == (JoinStatus.FAILED, 0, 1)

    async def test_a_step_attaches_more_steps(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(None)
        await joins.put(join, "1")
        await joins.wait(join)
        [step] = (await joins.claim()).values()
        await joins.put(join, "2")
        await joins.store.seal_join(joins.box, join)
        await joins.of.ack(step)
        assert await joins.counts(join) == (JoinStatus.PENDING, 1, 0)
        assert await joins.run() == [DONE.topic]

    # -- the caller's transaction ----------------------------------------------------------------------------------

    async def test_verbs_join_the_transaction(
        self, joins: JoinsUnderTest, store: Store, transaction: Transaction | None
    ) -> None:
        needs(store.features.transactional, "transactional")
        if transaction is None:
            pytest.skip("write the fixture `transaction` to prove that this store joins a caller's transaction")
        verbs, box, id_ = joins.store, joins.box, uuid4()
        await joins.of.find()  # the schema is there

        async def write(tx: Any) -> None:
            await verbs.start_join(box, JoinDraft(id_, "acme"), tx=tx)
            [one, two] = await verbs.put(box, [draft("1", join=id_), draft("2")], tx=tx)
            await verbs.attach_steps(box, id_, [two.id], tx=tx)
            await verbs.report_step(box, id_, one.id, failed=False, tx=tx)
            await joins.wait(id_, tx=tx)
            await verbs.seal_join(box, id_, tx=tx)

        with suppress(ZeroDivisionError):
            async with transaction() as tx:
                await write(tx)
                raise ZeroDivisionError
        assert await verbs.find_joins(box, JoinFilter()) == []
        assert await joins.of.find() == []
        async with transaction() as tx:
            await write(tx)
        assert await joins.counts(id_) == (JoinStatus.PENDING, 1, 0)
        assert await joins.run() == [DONE.topic]
        async with transaction() as tx:
            await verbs.start_join(box, JoinDraft(other := uuid4(), "acme"), tx=tx)
            await verbs.cancel_join(box, other, tx=tx)
        assert (await joins.get(other)).status is JoinStatus.CANCELLED

    async def test_an_ack_in_a_transaction_ends_the_join(
        self, joins: JoinsUnderTest, store: Store, transaction: Transaction | None
    ) -> None:
        needs(store.features.transactional, "transactional")
        if transaction is None:
            pytest.skip("write the fixture `transaction` to prove that this store joins a caller's transaction")
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [step] = (await joins.claim()).values()
        assert await joins.claim() == {}
        with suppress(ZeroDivisionError):
            async with transaction() as tx:
                await joins.store.settle(joins.box, [Settlement.done(claim_of(step))], tx=tx)
                raise ZeroDivisionError
        assert await joins.claim() == {}
        async with transaction() as tx:
            await joins.store.settle(joins.box, [Settlement.done(claim_of(step))], tx=tx)
        assert await joins.run() == [DONE.topic]

    # -- several workers -------------------------------------------------------------------------------------------

    async def test_a_lost_claim_ends_no_step(self, joins: JoinsUnderTest, elapse: Elapse) -> None:
        join = await joins.start(1)
        await joins.put(join, "1")
        await joins.wait(join)
        [mine] = (await joins.claim()).values()
        await elapse(LEASE + 1)
        [theirs] = await joins.of.claim(owner=BOB)
        assert isinstance(theirs.claim, Claim)
        assert await joins.of.ack(mine) == [False]
        assert await joins.counts(join) == (JoinStatus.PENDING, 0, 0)
        assert await joins.of.ack(theirs) == [True]
        assert await joins.run() == [DONE.topic]

    async def test_messages_without_a_join_are_left_alone(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(1)
        await joins.wait(join)
        await joins.put(None, "1", "2")
        assert names(await joins.of.claim()) == ["1", "2"]
