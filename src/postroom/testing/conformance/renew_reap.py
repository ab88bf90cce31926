"""The verbs `renew` and `reap`."""

from __future__ import annotations

from postroom.spi import Claim, Reaped, State
from postroom.testing.conformance.base import (
    BOB,
    LEASE,
    BoxKind,
    BoxUnderTest,
    Elapse,
    Now,
    OpenBox,
    Suite,
    claim_of,
    draft,
    names,
    seconds,
)


async def renew(box: BoxUnderTest, *claims: Claim, lease: float = LEASE) -> list[bool]:
    return list(await box.store.renew(box.box, claims, seconds(lease)))


class RenewConformance(Suite):
    """`renew`."""

    async def test_a_renewal_moves_the_end(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        claim = claim_of(await box.take())
        await elapse(LEASE - 1)
        began = await now()
        assert await renew(box, claim, lease=100) == [True]
        renewed = claim_of(await box.get("1"))
        assert renewed[:3] == claim[:3]
        assert began + seconds(100) <= renewed.until <= await now() + seconds(100)
        await elapse(99)
        assert await box.claim(owner=BOB) == []
        await elapse(1)
        assert names(await box.claim(owner=BOB)) == ["1"]

    async def test_a_renewal_may_shorten(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        assert await renew(box, claim_of(await box.take(lease=1000)), lease=5) == [True]
        await elapse(5)
        assert names(await box.claim()) == ["1"]

    async def test_the_first_claim_still_proves_the_lease(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        message = await box.take()
        for _ in range(3):
            await elapse(LEASE - 1)
            assert await renew(box, claim_of(message)) == [True]
        assert await box.ack(message) == [True]

    async def test_a_lost_lease_is_not_renewed(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        old = claim_of(await box.take())
        await elapse(LEASE)
        new = claim_of(await box.take())
        assert await renew(box, old) == [False]
        assert (await box.get("1")).claim == new

    async def test_a_lease_that_no_worker_took_can_be_renewed_late(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        claim = claim_of(await box.take())
        await elapse(LEASE * 2)
        assert await renew(box, claim) == [True]
        assert await box.claim(owner=BOB) == []

    async def test_renewals_return_results_in_order(self, open_box: OpenBox) -> None:
        box, other = open_box(name="one"), open_box(name="two")
        await box.put(*(draft(name) for name in ["done", "given-back", "held", "foreign"]))
        done, given_back, held, foreign = await box.claim()
        await box.ack(done)
        await box.release(given_back)
        claims = [claim_of(message) for message in (done, given_back, held, foreign)]
        claims[3] = claims[3]._replace(owner=BOB)
        unknown = claims[2]._replace(id=claims[2].id + 1000)
        assert await renew(box, *claims, unknown) == [False, False, True, False, False]
        assert await renew(other, claims[2]) == [False]
        assert await renew(box) == []


class ReapConformance(Suite):
    """`reap`, without expiry."""

    async def test_leases_that_have_passed_are_freed(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.put(draft("1"), draft("2"))
        await box.claim()
        await elapse(LEASE)
        assert await box.store.reap(box.box, 100) == Reaped(freed=2, expired=0)
        for message in await box.find():
            assert (message.state, message.claim, message.attempt, message.deliveries) == (State.WAITING, None, 0, 1)
        assert names(await box.claim(owner=BOB)) == ["1", "2"]

    async def test_live_leases_are_left_alone(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        before = await box.take()
        await elapse(LEASE - 1)
        assert await box.store.reap(box.box, 100) == Reaped(freed=0, expired=0)
        assert await box.get("1") == before

    async def test_the_finished_and_the_waiting_are_left_alone(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now
    ) -> None:
        box = open_box(kind)
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.put(draft("retrying"))
        await box.retry(await box.take(), delay=seconds(LEASE * 20))
        await box.put(draft("later", due=await now() + seconds(LEASE * 20)), draft("waiting"))
        before = await box.find()
        await elapse(LEASE * 10)
        assert await box.store.reap(box.box, 100) == Reaped(freed=0, expired=0)
        assert await box.find() == before
        assert names(await box.claim()) == ["waiting"]

    async def test_at_most_as_many_as_asked(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(*(draft(str(n)) for n in range(5)))
        await box.claim()
        await elapse(LEASE)
        freed = [(await box.store.reap(box.box, 2)).freed for _ in range(4)]
        assert freed == [2, 2, 1, 0]
