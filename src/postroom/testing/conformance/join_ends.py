"""Open joins, deadlines, `cancel_join`, and joins in the caller's transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from postroom.errors import JoinEnded
from postroom.spi import Ending, JoinDraft, JoinFilter, JoinStatus, Settlement, State, Store
from postroom.testing.conformance.base import Elapse, Now, Transaction, claim_of, draft, needs, seconds
from postroom.testing.conformance.join_base import DONE, FAILED, JoinSuite, JoinsUnderTest


class JoinEndConformance(JoinSuite):
    """How a join ends without its last step, and what commits with it."""

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
