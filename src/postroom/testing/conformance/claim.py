"""The verb `claim`: which messages, when, and for how long."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from postroom.spi import ClaimRequest, Delivery, Draft, Filter, State
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    SOURCE,
    BoxKind,
    Elapse,
    Now,
    OpenBox,
    Suite,
    claim_of,
    draft,
    names,
    seconds,
)
from postroom.testing.conformance.put import ODD_NAME


class ClaimConformance(Suite):
    """`claim`, without FIFO and expiry."""

    async def test_a_claim_is_owner_fence_and_end(self, open_box: OpenBox, kind: BoxKind, now: Now) -> None:
        box = open_box(kind)
        receipt = await box.put_one(draft("1", payload="whole", headers={"a": "b"}))
        began = await now()
        [message] = await box.claim(owner=ALICE, lease=45)
        claim = claim_of(message)
        assert (claim.id, claim.owner) == (receipt.id, ALICE)
        assert began + seconds(45) <= claim.until <= await now() + seconds(45)
        assert (message.state, message.payload, message.headers) == (State.CLAIMED, "whole", {"a": "b"})
        assert await box.get("1") == message

    async def test_nothing_ready_is_an_empty_list(self, open_box: OpenBox, kind: BoxKind) -> None:
        assert await open_box(kind).claim() == []

    async def test_never_more_than_asked(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.put(*(draft(str(n)) for n in range(5)))
        assert names(await box.claim(2)) == ["0", "1"]
        assert names(await box.claim(1)) == ["2"]
        assert names(await box.claim(10)) == ["3", "4"]

    async def test_the_oldest_come_first(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box()
        await box.put(draft("due-second", due=await now() + seconds(5)))
        await box.put(draft("due-first", due=await now() + seconds(1)))
        await elapse(3)
        await box.put(draft("third-of-these", due=await now() - seconds(60)))
        await elapse(7)
        assert (await box.claim(1))[0].message_id == "due-first"
        assert sorted(names(await box.claim())) == ["due-second", "third-of-these"]

    async def test_not_before_it_is_due(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, now: Now) -> None:
        box = open_box(kind)
        await box.put(draft("1", due=await now() + seconds(10)))
        await elapse(9)
        assert await box.claim() == []
        await elapse(1)
        assert names(await box.claim()) == ["1"]

    async def test_without_a_due_time_or_past_it_at_once(self, open_box: OpenBox, kind: BoxKind, now: Now) -> None:
        box = open_box(kind)
        await box.put(draft("none"), draft("past", due=await now() - seconds(1)), draft("now", due=await now()))
        assert sorted(names(await box.claim())) == ["none", "now", "past"]

    @pytest.mark.parametrize("second", [ALICE, BOB], ids=["same-owner", "other-owner"])
    async def test_a_live_lease_keeps_other_workers_off(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse, second: UUID
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        before = await box.take(owner=ALICE)
        await elapse(LEASE - 1)
        assert await box.claim(owner=second) == []
        assert await box.get("1") == before

    async def test_a_lease_that_has_passed_is_free_without_a_reaper(
        self, open_box: OpenBox, kind: BoxKind, elapse: Elapse
    ) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        await box.take(owner=ALICE)
        await elapse(LEASE)
        assert claim_of(await box.take(owner=BOB)).owner == BOB

    async def test_every_claim_raises_the_fence_and_counts_a_delivery(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"))
        fences, deliveries = [], []
        for _ in range(3):
            message = await box.take()
            fences.append(claim_of(message).fence)
            deliveries.append(message.deliveries)
            assert message.attempt == 0
            await elapse(LEASE)
        assert fences == sorted(set(fences))
        assert deliveries == [1, 2, 3]

    async def test_only_waiting_messages(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.store.record(box.box, [Draft(SOURCE, "seen")])
        await elapse(24 * 3600)
        assert await box.claim() == []

    async def test_not_before_the_backoff_has_passed(self, open_box: OpenBox, kind: BoxKind, elapse: Elapse) -> None:
        box = open_box(kind)
        await box.put(draft("1"))
        await box.retry(await box.take(), delay=seconds(10))
        await elapse(9)
        assert await box.claim() == []
        await elapse(1)
        assert names(await box.claim()) == ["1"]

    async def test_only_the_topics_that_were_asked_for(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(draft("1", topic="a"), draft("2", topic="b"), draft("3", topic="c"), draft("4", topic="a"))
        assert await box.claim(topics={"none"}) == []
        assert names(await box.claim(topics={"a", "c"})) == ["1", "3", "4"]
        assert names(await box.claim()) == ["2"]

    async def test_topics_are_asked_for_by_their_whole_text(self, open_box: OpenBox) -> None:
        box = open_box()
        topic = ODD_NAME + "!"
        await box.put(draft("odd", topic=topic), draft("cut", topic=ODD_NAME))
        assert names(await box.claim(topics={topic})) == ["odd"]

    async def test_other_topics_in_front_do_not_hide_what_was_asked_for(
        self, open_box: OpenBox, elapse: Elapse
    ) -> None:
        box = open_box()
        await box.put(*(draft(f"a{n}", topic="a") for n in range(30)), draft("b", topic="b"))
        assert names(await box.claim(1, topics={"b"})) == ["b"]
        await elapse(LEASE)
        assert names(await box.claim(1, topics={"b"})) == ["b"]

    async def test_claims_at_the_same_time_share_nothing(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind)
        await box.put(*(draft(str(n)) for n in range(100)))
        claims = await asyncio.gather(*(box.claim(7, owner=UUID(int=n + 1)) for n in range(20)))
        claimed = [message.id for batch in claims for message in batch]
        assert len(claimed) == len(set(claimed)) == 100
        assert all(len(batch) <= 7 for batch in claims)
        holders = {message.id: claim_of(message).owner for batch in claims for message in batch}
        assert {message.id: claim_of(message).owner for message in await box.find(limit=200)} == holders

    async def test_a_message_that_was_delivered_too_often_dies(
        self, open_box: OpenBox, elapse: Elapse, now: Now
    ) -> None:
        box = open_box(delivery=Delivery(max_deliveries=2))
        await box.put(draft("killer"))
        for _ in range(2):
            await box.take()
            await elapse(LEASE)
        await box.put(draft("other"))
        began = await now()
        assert names(await box.claim()) == ["other"]
        message = await box.get("killer")
        assert (message.state, message.last_error, message.deliveries) == (State.DEAD, "delivery limit", 2)
        assert message.completed_at is not None
        assert message.completed_at >= began

    async def test_the_delivery_limit_does_not_touch_a_running_handler(self, open_box: OpenBox) -> None:
        box = open_box(delivery=Delivery(max_deliveries=1))
        await box.put(draft("1"))
        message = await box.take()
        assert await box.claim() == []
        assert await box.ack(message) == [True]
        assert await box.state("1") is State.DONE

    async def test_a_release_is_a_delivery_too(self, open_box: OpenBox) -> None:
        box = open_box(delivery=Delivery(max_deliveries=2))
        await box.put(draft("1"))
        for _ in range(2):
            await box.release(await box.take())
        assert await box.claim() == []
        assert await box.state("1") is State.DEAD

    # -- lost leases ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reaps", [True, False])
    async def test_a_message_that_keeps_losing_its_lease_dies_by_default(
        self, open_box: OpenBox, elapse: Elapse, reaps: bool
    ) -> None:
        box = open_box()
        await box.put(draft("1"))
        for _ in range(Delivery().max_lost_leases or 0):
            assert names(await box.claim(owner=BOB)) == ["1"]
            await elapse(LEASE)
            if reaps:
                await box.store.reap(box.box, 10)
        assert await box.claim() == []
        message = await box.get("1")
        assert (message.state, message.last_error) == (State.DEAD, "delivery limit")

    async def test_an_outcome_ends_the_row_of_lost_leases(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(delivery=Delivery(max_lost_leases=2))
        await box.put(draft("1"))
        for _ in range(4):
            await box.take()
            await elapse(LEASE)
            await box.release(await box.take())
        assert await box.state("1") is State.WAITING

    async def test_what_comes_back_to_life_has_lost_no_lease(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(delivery=Delivery(max_lost_leases=1))
        await box.put(draft("1"))
        for _ in range(3):
            await box.take()
            await elapse(LEASE)
            assert await box.claim() == []
            await box.store.replay(box.box, Filter())
        assert await box.state("1") is State.WAITING

    @pytest.mark.parametrize("fifo", [False, True])
    async def test_a_suspect_is_claimed_alone(self, open_box: OpenBox, elapse: Elapse, fifo: bool) -> None:
        """A worker that crashes has a bad message and good ones in hand. Only the bad one may die."""
        box = open_box(fifo=fifo)
        await box.put(*(draft(name, group=name) for name in ("1", "2", "3")))
        for _ in range(2):
            assert names(await box.claim()) == ["1", "2", "3"]
            await elapse(LEASE)
        await box.put(draft("4"), draft("5"))
        claims = [names(await box.claim(owner=BOB)) for _ in range(5)]
        assert claims == [["1"], ["2"], ["3"], ["4", "5"], []]

    @pytest.mark.parametrize("fifo", [False, True])
    async def test_a_caller_does_not_get_what_it_has_in_hand(
        self, open_box: OpenBox, elapse: Elapse, fifo: bool
    ) -> None:
        box = open_box(fifo=fifo)
        await box.put(draft("1", group="g"), draft("2", group="g"), draft("3"))
        [first] = await box.claim(1)
        await elapse(LEASE)
        request = ClaimRequest(ALICE, seconds(LEASE), 10, in_hand=(first.id,))
        claimed = await box.store.claim(box.box, request)
        assert names(claimed) == (["3"] if fifo else ["2", "3"])
        assert await box.ack(first, *claimed) == [True] * (1 + len(claimed))

    async def test_another_worker_does_get_it(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box()
        await box.put(draft("1"), draft("2"))
        first, second = await box.claim()
        await elapse(LEASE)
        request = ClaimRequest(BOB, seconds(LEASE), 10, in_hand=(second.id + 1000,))
        assert names(await box.store.claim(box.box, request)) == ["1", "2"]
        assert await box.ack(first, second) == [False, False]
