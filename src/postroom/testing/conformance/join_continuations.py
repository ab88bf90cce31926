"""The continuation of a join: it is sent once, after all steps."""

from __future__ import annotations

import pytest

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom.errors import JoinFull
from postroom.spi import (
    Claim,
    ClaimRequest,
    JoinStatus,
    ReceiptStatus,
    Retention,
    Settlement,
    State,
    StepStatus,
    Store,
)
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    Elapse,
    OpenBox,
    claim_of,
    names,
    needs,
    seconds,
)
from postroom.testing.conformance.join_base import DONE, FAILED, JoinSuite, JoinsUnderTest


class JoinContinuationConformance(JoinSuite):
    """What follows a join, and joins that follow each other."""

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

    @pytest.mark.parametrize("is_done", [False, True])
    async def test_another_message_has_the_key_of_the_continuation(self, joins: JoinsUnderTest, is_done: bool) -> None:
        join = await joins.start(1)
        await joins.put(None, str(join), topic=WAIT_TOPIC)
        if is_done:
            [message] = (await joins.claim()).values()
            await joins.of.ack(message)
        assert (await joins.wait(join)).status is ReceiptStatus.CONFLICT
        await joins.put(join, "1")
        assert list(await joins.claim("order")) == ["1"]

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
