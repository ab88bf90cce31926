"""The behaviour of `begin` for new keys, and for keys in progress."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from postroom.spi import NO_END, Result, Settlement, State, Store
from postroom.testing.conformance.base import ALICE, BOB, LEASE, Elapse, Now, OpenBox, seconds
from postroom.testing.conformance.guard_base import (
    ACQUIRED,
    BUSY,
    HANDLER,
    PROCESSED,
    GuardSuite,
    GuardUnderTest,
    begin,
)


class GuardBeginConformance(GuardSuite):
    """`begin` of new keys and of keys in progress."""

    # -- a new key -------------------------------------------------------------------------------------------------

    async def test_a_new_key_is_acquired(self, guard: GuardUnderTest, now: Now) -> None:
        before = await now()
        begun = await guard.begin_one("new")
        assert begun.status is ACQUIRED
        assert begun.deliveries == 1
        assert begun.claim is not None
        assert begun.claim.owner == ALICE
        assert begun.claim.fence > 0
        assert before + seconds(LEASE) <= begun.claim.until <= await now() + seconds(LEASE)

    async def test_a_record_has_key_topic_hash_and_claim(self, guard: GuardUnderTest) -> None:
        claim = await guard.acquire("new", digest=b"\x00\xff")
        record = await guard.get("new")
        assert (record.source, record.message_id, record.topic, record.hash) == (HANDLER, "new", "payment", b"\x00\xff")
        assert (record.state, record.claim, record.deliveries, record.attempt) == (State.CLAIMED, claim, 1, 0)
        assert record.first_seen == record.last_seen

    async def test_several_keys_begin_at_once(self, guard: GuardUnderTest) -> None:
        await guard.settle(Settlement.done(await guard.acquire("done")))
        begun = await guard.begin(begin("a"), begin("done"), begin("b", BOB, lease=2 * LEASE), begin("c", lease=None))
        assert [each.status for each in begun] == [ACQUIRED, PROCESSED, ACQUIRED, ACQUIRED]
        first, _, second, third = (each.claim for each in begun)
        assert first is not None
        assert second is not None
        assert third is not None
        assert (second.owner, second.until - first.until, third.until) == (BOB, seconds(LEASE), NO_END)
        assert await guard.settle(*map(Settlement.done, (third, first, second))) == [True, True, True]

    async def test_no_begins_are_no_error(self, guard: GuardUnderTest) -> None:
        assert await guard.begin() == []

    async def test_the_first_of_equal_keys_is_decided_first(self, guard: GuardUnderTest) -> None:
        begun = await guard.begin(begin("same"), begin("other"), begin("same", BOB), begin("same"))
        assert [each.status for each in begun] == [ACQUIRED, ACQUIRED, BUSY, ACQUIRED]
        assert begun[3].claim == begun[0].claim

    async def test_equal_keys_of_a_released_record_are_acquired_once(self, guard: GuardUnderTest) -> None:
        await guard.settle(Settlement.release(await guard.acquire("same")))
        begun = await guard.begin(begin("same", BOB), begin("same", ALICE))
        assert [each.status for each in begun] == [ACQUIRED, BUSY]

    async def test_the_same_key_of_another_source_is_another_record(self, guard: GuardUnderTest) -> None:
        await guard.acquire("same")
        assert (await guard.begin_one("same", BOB, source="ship")).status is ACQUIRED

    async def test_guards_do_not_share_keys(self, guard: GuardUnderTest, store: Store, open_box: OpenBox) -> None:
        await guard.acquire("same")
        other = GuardUnderTest(store, open_box("guard", "other").box)
        assert (await other.begin_one("same", BOB)).status is ACQUIRED

    @pytest.mark.parametrize("key", ["'; --", "a:b/c%2F", "é\U0001f600", '{"x"}', "a\\b", "." * 255])
    async def test_any_text_is_a_key(self, guard: GuardUnderTest, key: str) -> None:
        claim = await guard.acquire(key)
        assert (await guard.begin_one(key, BOB)).status is BUSY
        assert await guard.settle(Settlement.done(claim)) == [True]
        assert (await guard.begin_one(key, BOB)).status is PROCESSED

    async def test_of_fifty_concurrent_begins_one_acquires(self, guard: GuardUnderTest) -> None:
        begun = await asyncio.gather(*(guard.begin_one("contended", uuid4()) for _ in range(50)))
        assert sorted(each.status for each in begun) == [ACQUIRED, *[BUSY] * 49]
        [claim] = [each.claim for each in begun if each.claim is not None]
        assert (await guard.get("contended")).claim == claim
        assert await guard.settle(Settlement.release(claim)) == [True]
        again = await asyncio.gather(*(guard.begin_one("contended", uuid4()) for _ in range(50)))
        assert sorted(each.status for each in again) == [ACQUIRED, *[BUSY] * 49]

    async def test_concurrent_begins_of_many_keys_acquire_each_once(self, guard: GuardUnderTest) -> None:
        keys = [f"key {number}" for number in range(10)]
        orders = [keys, keys[::-1], keys[5:] + keys[:5]] * 3
        results = await asyncio.gather(*(guard.begin(*(begin(key, uuid4()) for key in order)) for order in orders))
        acquired = [
            key
            for order, result in zip(orders, results, strict=True)
            for key, begun in zip(order, result, strict=True)
            if begun.status is ACQUIRED
        ]
        assert sorted(acquired) == keys

    # -- in progress -----------------------------------------------------------------------------------------------

    async def test_a_leased_key_is_busy_until_the_end_of_the_lease(self, guard: GuardUnderTest) -> None:
        claim = await guard.acquire("leased")
        begun = await guard.begin_one("leased", BOB)
        assert (begun.status, begun.until, begun.claim) == (BUSY, claim.until, None)
        assert (await guard.get("leased")).claim == claim

    async def test_the_same_owner_gets_its_claim_again(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        claim = await guard.acquire("leased")
        await elapse(LEASE / 2)
        assert await guard.acquire("leased") == claim
        assert (await guard.get("leased")).deliveries == 1

    async def test_the_owner_whose_lease_has_ended_gets_a_new_claim(
        self, guard: GuardUnderTest, elapse: Elapse
    ) -> None:
        claim = await guard.acquire("leased")
        await elapse(LEASE + 1)
        assert (await guard.acquire("leased")).fence > claim.fence

    async def test_an_ended_lease_is_taken_over(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        old = await guard.acquire("crashed")
        await elapse(LEASE + 1)
        begun = await guard.begin_one("crashed", BOB)
        assert (begun.status, begun.deliveries) == (ACQUIRED, 2)
        assert begun.claim is not None
        assert (begun.claim.owner, begun.claim.id) == (BOB, old.id)
        assert begun.claim.fence > old.fence
        record = await guard.get("crashed")
        assert (record.claim, record.deliveries, record.lost_leases) == (begun.claim, 2, 1)
        assert record.last_seen > record.first_seen

    @pytest.mark.parametrize("verdict", ["done", "release", "dead"])
    async def test_a_late_outcome_is_refused(self, guard: GuardUnderTest, elapse: Elapse, verdict: str) -> None:
        old = await guard.acquire("paused")
        await elapse(LEASE + 1)
        new = await guard.acquire("paused", BOB)
        late = {
            "done": Settlement.done(old, Result("1", "json")),
            "release": Settlement.release(old),
            "dead": Settlement.dead(old, error="late"),
        }
        assert await guard.settle(late[verdict]) == [False]
        assert list(await guard.store.renew(guard.box, [old], seconds(LEASE))) == [False]
        assert await guard.settle(Settlement.done(new)) == [True]
        assert (await guard.begin_one("paused")).has_result is False

    async def test_an_outcome_after_the_lease_counts_if_no_other_has_begun(
        self, guard: GuardUnderTest, elapse: Elapse
    ) -> None:
        claim = await guard.acquire("slow")
        await elapse(LEASE + 1)
        assert await guard.settle(Settlement.done(claim)) == [True]

    async def test_a_renewed_lease_is_busy(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        claim = await guard.acquire("slow")
        await elapse(LEASE / 2)
        assert list(await guard.store.renew(guard.box, [claim], seconds(LEASE))) == [True]
        await elapse(LEASE * 0.75)
        assert (await guard.begin_one("slow", BOB)).status is BUSY
        await elapse(LEASE)
        assert (await guard.begin_one("slow", BOB)).status is ACQUIRED

    async def test_a_reaped_key_can_be_acquired(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        old = await guard.acquire("crashed")
        await elapse(LEASE + 1)
        assert (await guard.store.reap(guard.box, 10)).freed == 1
        assert (await guard.get("crashed")).state is State.WAITING
        new = await guard.acquire("crashed", BOB)
        assert new.fence > old.fence
        assert await guard.settle(Settlement.done(old)) == [False]

    async def test_a_lease_without_an_end_is_never_taken(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        claim = await guard.acquire("marked", lease=None)
        await elapse(timedelta(days=400).total_seconds())
        begun = await guard.begin_one("marked", BOB)
        assert (begun.status, begun.until) == (BUSY, None)
        assert (await guard.store.reap(guard.box, 10)).freed == 0
        assert (await guard.get("marked")).claim == claim
        assert await guard.settle(Settlement.done(claim)) == [True]
