"""The behaviour of `begin`, and of `settle`, `renew` and `reap` on what it claims: stores with `features.guard`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Protocol, cast
from uuid import UUID, uuid4

import pytest

from postroom.spi import (
    NO_END,
    Begin,
    BeginStatus,
    Begun,
    Box,
    Claim,
    Draft,
    Filter,
    GuardStore,
    Purge,
    Result,
    Retention,
    Settlement,
    State,
    Store,
    StoredMessage,
)
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    Elapse,
    Now,
    OpenBox,
    Suite,
    Transaction,
    needs,
    seconds,
)

HANDLER = "charge"
ACQUIRED, PROCESSED, BUSY = BeginStatus.ACQUIRED, BeginStatus.PROCESSED, BeginStatus.BUSY
CONFLICT, DEAD = BeginStatus.CONFLICT, BeginStatus.DEAD


def begin(
    key: str,
    owner: UUID = ALICE,
    *,
    lease: float | None = LEASE,
    source: str = HANDLER,
    digest: bytes | None = None,
    algorithm: str = "sha256",
) -> Begin:
    draft = Draft(source, key, "payment", hash=digest, hash_algorithm=algorithm)
    return Begin(draft, owner, None if lease is None else seconds(lease))


class GuardedStore(Store, GuardStore, Protocol):
    """A store with `features.guard`."""


class GuardUnderTest:
    """A guard of the store under test, with short calls of its verbs."""

    def __init__(self, store: Store, box: Box) -> None:
        self.store = cast("GuardedStore", store)
        self.box = box

    async def begin(self, *begins: Begin) -> list[Begun]:
        return await self.store.begin(self.box, begins)

    async def begin_one(self, key: str, owner: UUID = ALICE, **options: object) -> Begun:
        [begun] = await self.begin(begin(key, owner, **options))  # type: ignore[arg-type]
        return begun

    async def acquire(self, key: str, owner: UUID = ALICE, **options: object) -> Claim:
        begun = await self.begin_one(key, owner, **options)
        assert begun.status is ACQUIRED
        assert begun.claim is not None, "an acquired key has a claim"
        return begun.claim

    async def settle(self, *settlements: Settlement) -> list[bool]:
        return list(await self.store.settle(self.box, settlements))

    async def get(self, key: str) -> StoredMessage:
        found = await self.store.find(self.box, Filter(source=HANDLER, message_id=key))
        assert found, f"{key} has no record"
        return found[-1]


class GuardConformance(Suite):
    """`begin`, on stores with `features.guard`."""

    @pytest.fixture
    def guard(self, store: Store, open_box: OpenBox) -> GuardUnderTest:
        needs(store.features.guard, "guard")
        return GuardUnderTest(store, open_box("guard").box)

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
