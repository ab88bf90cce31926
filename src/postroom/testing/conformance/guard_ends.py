"""The behaviour of a guard for keys that have ended: outcomes, results, content, retention and transactions."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from postroom.spi import Begun, Draft, Filter, Purge, Result, Retention, Settlement, State, Store
from postroom.testing.conformance.base import ALICE, BOB, LEASE, Elapse, OpenBox, Transaction, needs, seconds
from postroom.testing.conformance.guard_base import (
    ACQUIRED,
    BUSY,
    CONFLICT,
    DEAD,
    HANDLER,
    PROCESSED,
    GuardSuite,
    GuardUnderTest,
    begin,
)


class GuardEndConformance(GuardSuite):
    """`begin` of keys that have ended."""

    # -- ended -----------------------------------------------------------------------------------------------------

    async def test_a_processed_key_is_processed(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        assert await guard.settle(Settlement.done(await guard.acquire("done"))) == [True]
        await elapse(LEASE + 1)
        begun = await guard.begin_one("done", BOB)
        assert begun == Begun(PROCESSED)
        assert not begun.has_result
        record = await guard.get("done")
        assert (record.state, record.completed_by, record.deliveries) == (State.DONE, ALICE, 1)

    @pytest.mark.parametrize(
        "result",
        [Result('{"x":"é"}', "json"), Result("null", "json"), Result(b"\x00\xff", "bytes"), Result(b"", "bytes")],
    )
    async def test_a_result_is_kept(self, guard: GuardUnderTest, result: Result) -> None:
        assert await guard.settle(Settlement.done(await guard.acquire("done"), result)) == [True]
        begun = await guard.begin_one("done", BOB)
        assert (begun.status, begun.has_result) == (PROCESSED, True)
        assert (begun.result, begun.format) == result
        record = await guard.get("done")
        assert (record.payload, record.format) == result

    async def test_each_record_keeps_its_result(self, guard: GuardUnderTest) -> None:
        owners = [uuid4() for _ in range(4)]
        begun = await guard.begin(*(begin(str(number), owner) for number, owner in enumerate(owners)))
        claims = [each.claim for each in begun if each.claim is not None]
        settlements = [
            Settlement.done(claims[3], Result("3", "json")),
            Settlement.done(claims[0]),
            Settlement.dead(claims[2], error="bad"),
            Settlement.done(claims[1], Result(b"1", "bytes")),
            Settlement.done(claims[1]._replace(owner=owners[0]), Result(b"stolen", "bytes")),
        ]
        assert await guard.settle(*settlements) == [True, True, True, True, False]
        again = await guard.begin(*(begin(str(number), BOB) for number in range(4)))
        assert [(each.status, each.result) for each in again] == [
            (PROCESSED, None),
            (PROCESSED, b"1"),
            (DEAD, None),
            (PROCESSED, "3"),
        ]

    async def test_a_released_key_can_be_acquired(self, guard: GuardUnderTest) -> None:
        old = await guard.acquire("released")
        assert await guard.settle(Settlement.release(old)) == [True]
        record = await guard.get("released")
        assert (record.state, record.claim, record.attempt) == (State.WAITING, None, 0)
        begun = await guard.begin_one("released", BOB)
        assert (begun.status, begun.deliveries) == (ACQUIRED, 2)
        assert begun.claim is not None
        assert begun.claim.fence > old.fence
        assert (await guard.get("released")).lost_leases == 0

    async def test_a_delayed_release_can_be_acquired_at_once(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        await guard.settle(Settlement.release(await guard.acquire("released"), delay=timedelta(hours=1)))
        await guard.acquire("released", BOB)
        await elapse(LEASE + 1)
        assert (await guard.store.reap(guard.box, 10)).freed == 1

    async def test_a_dead_key_is_dead_until_its_replay(self, guard: GuardUnderTest) -> None:
        claim = await guard.acquire("failed")
        assert await guard.settle(Settlement.dead(claim, error="bad card", counts=True)) == [True]
        begun = await guard.begin_one("failed", BOB)
        assert (begun.status, begun.error, begun.claim) == (DEAD, "bad card", None)
        assert await guard.store.replay(guard.box, Filter()) == [(HANDLER, "failed")]
        assert (await guard.acquire("failed", BOB)).fence > claim.fence

    async def test_a_marked_key_is_processed(self, guard: GuardUnderTest) -> None:
        key = begin("marked").draft.key
        assert await guard.store.mark(guard.box, [key], "processed") == [True]
        assert await guard.begin_one("marked") == Begun(PROCESSED)

    async def test_a_mark_ends_a_lease_of_a_guard(self, guard: GuardUnderTest) -> None:
        claim = await guard.acquire("marked")
        assert await guard.store.mark(guard.box, [begin("marked").draft.key], "processed") == [True]
        assert await guard.settle(Settlement.done(claim)) == [False]

    async def test_a_recorded_key_can_be_acquired(self, guard: GuardUnderTest) -> None:
        await guard.store.record(guard.box, [begin("seen").draft])
        claim = await guard.acquire("seen")
        assert (await guard.store.counts(guard.box))[State.SEEN] == 0
        assert await guard.settle(Settlement.done(claim)) == [True]

    # -- content ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("ending", ["leased", "done", "dead", "released"])
    async def test_another_hash_is_a_conflict_in_every_state(self, guard: GuardUnderTest, ending: str) -> None:
        claim = await guard.acquire("key", digest=b"one")
        settlements = {
            "done": Settlement.done(claim, Result('"secret"', "json")),
            "dead": Settlement.dead(claim, error="secret"),
            "released": Settlement.release(claim),
        }
        if ending != "leased":
            assert await guard.settle(settlements[ending]) == [True]
        before = await guard.get("key")
        assert await guard.begin_one("key", ALICE, digest=b"two") == Begun(CONFLICT)
        assert await guard.get("key") == before

    async def test_hashes_that_cannot_be_compared_are_no_conflict(self, guard: GuardUnderTest) -> None:
        await guard.acquire("key", digest=b"one")
        assert (await guard.begin_one("key", BOB)).status is BUSY
        assert (await guard.begin_one("key", BOB, digest=b"two", algorithm="md5")).status is BUSY
        assert (await guard.begin_one("key", BOB, digest=b"one")).status is BUSY

    async def test_another_topic_is_no_conflict(self, guard: GuardUnderTest) -> None:
        claim = await guard.acquire("key")
        renamed = begin("key")._replace(draft=Draft(HANDLER, "key", "renamed"))
        [begun] = await guard.begin(renamed)
        assert begun.claim == claim

    # -- time ------------------------------------------------------------------------------------------------------

    async def test_a_key_past_its_deduplication_window_is_new(
        self, store: Store, open_box: OpenBox, elapse: Elapse
    ) -> None:
        needs(store.features.guard, "guard")
        window = Retention(dedup_window=timedelta(hours=1), age_from="completed_at")
        guard = GuardUnderTest(store, open_box("guard", retention=window).box)
        old = await guard.acquire("old")
        await guard.settle(Settlement.done(old))
        await elapse(3599)
        assert (await guard.begin_one("old", BOB)).status is PROCESSED
        await elapse(2)
        begun = await guard.begin(begin("old", BOB), begin("young", BOB), begin("old"))
        assert [each.status for each in begun] == [ACQUIRED, ACQUIRED, BUSY]
        assert begun[0].claim is not None
        assert begun[0].claim.id != old.id

    async def test_a_purged_key_begins_anew(self, guard: GuardUnderTest, elapse: Elapse) -> None:
        await guard.settle(Settlement.done(await guard.acquire("old")))
        await elapse(100)
        await guard.settle(Settlement.done(await guard.acquire("young")))
        await guard.acquire("running")
        assert await guard.store.purge(guard.box, Purge(State.DONE, seconds(50))) == 1
        begun = await guard.begin(begin("old", BOB), begin("young", BOB), begin("running", BOB))
        assert [each.status for each in begun] == [ACQUIRED, PROCESSED, BUSY]

    # -- transactions ----------------------------------------------------------------------------------------------

    async def test_a_completion_commits_with_its_transaction(
        self, guard: GuardUnderTest, store: Store, transaction: Transaction | None
    ) -> None:
        needs(store.features.transactional and transaction is not None, "transactional")
        assert transaction is not None
        claim = await guard.acquire("key")
        done = Settlement.done(claim, Result("1", "json"))
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the error must leave the transaction
            async with transaction() as tx:
                assert list(await store.settle(guard.box, [done], tx=tx)) == [True]
                raise ZeroDivisionError
        assert (await guard.get("key")).claim == claim
        async with transaction() as tx:
            assert list(await store.settle(guard.box, [done], tx=tx)) == [True]
        assert (await guard.begin_one("key", BOB)).result == "1"
