"""Steps of joins: how messages become steps, and reports."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from postroom._kernel.joins import WAIT_TOPIC
from postroom.errors import ArgumentValueError, JoinFull, JoinNotFound, MessageNotFound
from postroom.spi import Draft, JoinDraft, JoinFilter, JoinStatus, JoinWait, Key, ReceiptStatus, StepStatus
from postroom.testing.conformance.base import SOURCE, Now, OpenBox, draft, seconds
from postroom.testing.conformance.join_base import DONE, FAILED, JoinSuite, JoinsUnderTest


class JoinStepConformance(JoinSuite):
    """How a join starts, how messages become its steps, and `report_step`."""

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

    async def test_a_continuation_is_no_step_of_its_join(self, joins: JoinsUnderTest) -> None:
        join, other = await joins.start(3), await joins.start(3)
        receipt = await joins.wait(join)
        mine = await joins.of.put_one(draft("mine"))
        for step in (receipt.id, Key(SOURCE, str(join))):
            with pytest.raises(ArgumentValueError, match="would wait for itself"):
                await joins.store.attach_steps(joins.box, join, [mine.id, step])
        with pytest.raises(ArgumentValueError, match="would wait for itself"):
            await joins.of.put(draft("new", join=join), draft(str(join), join=join))
        assert await joins.steps(join) == {}
        assert await joins.of.find(message_id="new") == []
        assert await joins.store.attach_steps(joins.box, other, [receipt.id]) == [True]

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
        assert await listed(tenant_id="unknown") == []

    async def test_steps_are_listed_in_pages(self, joins: JoinsUnderTest) -> None:
        join = await joins.start(5)
        receipts = await joins.put(join, *"12345")
        page = await joins.store.find_steps(joins.box, join, limit=2)
        assert [step.id for step in page] == [receipt.id for receipt in receipts[:2]]
        assert [(step.source, step.message_id) for step in page] == [(SOURCE, "1"), (SOURCE, "2")]
        rest = await joins.store.find_steps(joins.box, join, after=page[-1].id)
        assert [step.message_id for step in rest] == ["3", "4", "5"]

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
