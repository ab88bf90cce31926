"""Expired messages: dead, not lost, and never claimed."""

from __future__ import annotations

from postroom.spi import Ending, Filter, Reaped, Retention, State
from postroom.testing.conformance.base import LEASE, BoxKind, Elapse, Now, OpenBox, Suite, draft, names, seconds


class ExpiryConformance(Suite):
    """`expires` and `lifetime`."""

    async def test_a_claim_buries_what_has_expired(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1", expires=await now() + seconds(10)))
        await elapse(10)
        began = await now()
        assert await box.claim() == []
        message = await box.get("1")
        assert (message.state, message.last_error, message.deliveries) == (State.DEAD, "expired", 0)
        assert message.completed_at is not None
        assert began <= message.completed_at <= await now()

    async def test_until_then_it_can_be_claimed(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("1", expires=await now() + seconds(10)))
        await elapse(9)
        assert names(await box.claim()) == ["1"]

    async def test_the_expired_do_not_take_the_place_of_others(
        self, open_box: OpenBox, elapse: Elapse, now: Now
    ) -> None:
        box, soon = open_box(), await now() + seconds(10)
        await box.put(*(draft(f"late-{n}", expires=soon) for n in range(5)), draft("good-1"), draft("good-2"))
        await elapse(10)
        assert names(await box.claim(2)) == ["good-1", "good-2"]

    async def test_a_lifetime_counts_from_the_put(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await elapse(100)
        began = await now()
        await box.put(draft("1", lifetime=seconds(20)))
        expires = (await box.get("1")).expires
        assert expires is not None
        assert began + seconds(20) <= expires <= await now() + seconds(20)
        await elapse(20)
        assert await box.claim() == []
        assert (await box.get("1")).last_error == "expired"

    async def test_expires_comes_before_lifetime(self, open_box: OpenBox, now: Now) -> None:
        box, expires = open_box(), await now() + seconds(500)
        await box.put(draft("1", expires=expires, lifetime=seconds(5)))
        assert (await box.get("1")).expires == expires

    async def test_a_reap_buries_what_has_expired(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now
    ) -> None:
        box, soon = open_box(kind), await now() + seconds(10)
        await box.put(
            draft("late", expires=soon), draft("not-due", due=soon + seconds(90), expires=soon), draft("good")
        )
        await elapse(10)
        assert await box.store.reap(box.box, 100) == Reaped(freed=0, expired=2)
        assert names(await box.find(states=frozenset({State.DEAD}))) == ["late", "not-due"]
        assert {message.last_error for message in await box.find(states=frozenset({State.DEAD}))} == {"expired"}
        assert names(await box.claim()) == ["good"]

    async def test_a_reap_buries_at_most_as_many_as_asked(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(*(draft(str(n), lifetime=seconds(1)) for n in range(5)))
        await elapse(1)
        assert [(await box.store.reap(box.box, 2)).expired for _ in range(4)] == [2, 2, 1, 0]

    async def test_a_handler_that_has_begun_may_finish(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1", lifetime=seconds(10)))
        message = await box.take()
        await elapse(11)
        assert await box.store.reap(box.box, 100) == Reaped(freed=0, expired=0)
        assert await box.ack(message) == [True]
        assert await box.state("1") is State.DONE

    async def test_a_lost_lease_and_an_expiry_are_one_reap(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1", lifetime=seconds(10)))
        await box.take()
        await elapse(LEASE)
        assert await box.store.reap(box.box, 100) == Reaped(freed=1, expired=1)
        assert await box.state("1") is State.DEAD

    async def test_a_retry_past_the_expiry_is_not_made(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1", lifetime=seconds(10)))
        await box.retry(await box.take(), delay=seconds(20))
        await elapse(20)
        assert await box.claim() == []
        assert await box.state("1") is State.DEAD

    async def test_a_replay_lifts_the_expiry(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1", lifetime=seconds(10)))
        await elapse(10)
        await box.claim()
        await box.store.replay(box.box, Filter())
        await elapse(10_000)
        assert (await box.take()).expires is None

    async def test_a_duplicate_may_set_another_expiry(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box, moment = open_box(), await now()
        await box.put(draft("1", expires=moment + seconds(10)), draft("2", expires=moment + seconds(10)))
        await box.put(draft("1", expires=moment + seconds(100)), draft("2"))
        await elapse(50)
        assert names(await box.claim()) == ["1"]
        assert await box.state("2") is State.DEAD

    async def test_where_the_dead_are_discarded_so_are_the_expired(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(retention=Retention(dead_letter="discard"))
        await box.put(draft("1", lifetime=seconds(10)))
        await elapse(10)
        assert await box.claim() == []
        message = await box.get("1")
        assert (message.ending, message.last_error, message.payload) == (Ending.DISCARDED, "expired", "")
