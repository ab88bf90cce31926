"""FIFO groups: which members a claim takes, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from uuid import UUID

import pytest

from postroom.spi import Delivery, Draft, Filter, Retention, Settlement, State
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
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


def member(message_id: str, group: str = "g", **fields: Any) -> Draft:
    return draft(message_id, group=group, **fields)


class FifoConformance(Suite):
    """Boxes with `order.fifo`."""

    async def test_a_batch_is_the_front_of_a_group_in_order(self, open_box: OpenBox, kind: BoxKind) -> None:
        box = open_box(kind, fifo=True)
        await box.put(*(member(str(n)) for n in range(4)))
        claimed = await box.claim(3)
        assert names(claimed) == ["0", "1", "2"]
        await box.ack(*claimed)
        assert names(await box.claim(3)) == ["3"]

    @pytest.mark.parametrize("second", [ALICE, BOB], ids=["same-owner", "other-owner"])
    async def test_a_group_is_held_while_its_head_is_claimed(self, open_box: OpenBox, second: UUID) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        [head] = await box.claim(1)
        assert await box.claim(owner=second) == []
        await box.put(member("3"))
        assert await box.claim(owner=second) == []
        await box.ack(head)
        assert names(await box.claim(owner=second)) == ["2", "3"]

    async def test_a_group_is_held_by_the_last_of_a_batch(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(3)))
        first, second = await box.claim(2)
        await box.ack(first)
        assert await box.claim(owner=BOB) == []
        await box.ack(second)
        assert names(await box.claim(owner=BOB)) == ["2"]

    async def test_groups_do_not_wait_for_each_other(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("a1", "a"), member("b1", "b"), member("a2", "a"), member("c1", "c"))
        assert names(await box.claim(1)) == ["a1"]
        assert sorted(names(await box.claim(owner=BOB))) == ["b1", "c1"]

    async def test_a_group_is_known_by_its_whole_name(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        group = ODD_NAME + "!"
        await box.put(member("1", group), member("2", group), member("x", group.removesuffix("!")))
        assert names(await box.claim(1)) == ["1"]
        assert names(await box.claim(owner=BOB)) == ["x"]

    async def test_messages_without_a_group_have_no_order_to_keep(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(draft("1"), draft("2"), member("3"))
        assert len(await box.claim(1)) == 1
        assert len(await box.claim(owner=BOB)) == 2

    async def test_a_box_without_order_ignores_groups(self, open_box: OpenBox) -> None:
        box = open_box()
        await box.put(member("1"), member("2"))
        assert names(await box.claim(1)) == ["1"]
        assert names(await box.claim(owner=BOB)) == ["2"]

    async def test_the_order_is_the_stores_own(self, open_box: OpenBox, now: Now) -> None:
        box, moment = open_box(fifo=True), await now()
        await box.put(member("1", received_at=moment), member("2", received_at=moment - seconds(60)))
        assert names(await box.claim()) == ["1", "2"]

    async def test_claims_at_the_same_time_never_share_a_group(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(f"{group}{n}", group) for n in range(5) for group in "abcd"))
        claims = await asyncio.gather(*(box.claim(3, owner=UUID(int=n + 1)) for n in range(12)))
        holders: dict[str | None, set[UUID]] = {}
        for batch in claims:
            for message in batch:
                holders.setdefault(message.group, set()).add(claim_of(message).owner)
        assert {group: len(owners) for group, owners in holders.items()} == dict.fromkeys("abcd", 1)

    # -- topics --------------------------------------------------------------------------------------------------

    async def test_a_batch_ends_at_a_topic_that_was_not_asked_for(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("1", topic="a"), member("2", topic="b"), member("3", topic="a"))
        claimed = await box.claim(topics={"a"})
        assert names(claimed) == ["1"]
        await box.ack(*claimed)
        assert await box.claim(topics={"a"}) == []
        assert names(await box.claim()) == ["2", "3"]

    # -- outcomes ------------------------------------------------------------------------------------------------

    async def test_a_retrying_head_holds_its_group(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        await box.settle(Settlement.retry(claim_of((await box.claim(1))[0]), delay=seconds(10)))
        await elapse(9)
        assert await box.claim() == []
        await elapse(1)
        assert names(await box.claim()) == ["1", "2"]

    @pytest.mark.parametrize("verdict", ["retry", "release"])
    async def test_what_is_not_success_ends_the_batch(
        self, open_box: OpenBox, elapse: Elapse, verdict: Literal["retry", "release"]
    ) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(4)))
        claims = [claim_of(message) for message in await box.claim()]
        outcomes = [Settlement.done(claim) for claim in claims]
        outcomes[1] = Settlement(claims[1], verdict, seconds(10))
        assert await box.settle(*outcomes) == [True, True, False, False]
        rest = {message.message_id: message for message in await box.find(states=frozenset({State.WAITING}))}
        assert {name: message.attempt for name, message in rest.items()} == {
            "1": int(verdict == "retry"),
            "2": 0,
            "3": 0,
        }
        assert await box.claim() == []
        await elapse(10)
        assert names(await box.claim()) == ["1", "2", "3"]

    async def test_the_rest_of_a_batch_is_lost_to_its_worker(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"), member("3"))
        first, second, third = await box.claim()
        await box.settle(Settlement.retry(claim_of(first), delay=seconds(5)))
        assert await box.ack(second) == [False]
        assert list(await box.store.renew(box.box, [claim_of(third)], seconds(60))) == [False]
        assert (await box.get("2")).claim is None

    async def test_a_whole_batch_can_be_given_back(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(3)))
        claimed = await box.claim()
        assert await box.release(*claimed) == [True] * 3
        assert names(await box.claim(owner=BOB)) == ["0", "1", "2"]

    async def test_members_may_be_acked_out_of_order(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"), member("3"))
        first, second = await box.claim(2)
        assert await box.ack(second) == [True]
        assert await box.claim(owner=BOB) == []
        assert await box.ack(first) == [True]
        assert names(await box.claim(owner=BOB)) == ["3"]

    async def test_an_ack_of_old_content_is_no_success(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, delivery=Delivery(on_stale_ack="requeue"))
        await box.put(member("1", payload="old"), member("2"))
        claimed = await box.claim()
        await box.put(member("1", payload="new"))
        assert await box.ack(*claimed) == [True, False]
        assert [(m.message_id, m.payload) for m in await box.claim()] == [("1", "new"), ("2", "payload")]

    # -- due times -----------------------------------------------------------------------------------------------

    async def test_a_member_that_is_not_due_does_not_block(self, open_box: OpenBox, now: Now) -> None:
        box = open_box(fifo=True)
        await box.put(member("later", due=await now() + seconds(10)), member("1"), member("2"))
        assert names(await box.claim()) == ["1", "2"]

    async def test_a_member_takes_its_place_when_it_is_due(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box(fifo=True)
        await box.put(member("later", due=await now() + seconds(10)), member("1"), member("2"), member("3"))
        first = await box.claim(1)
        await elapse(10)
        assert await box.claim(owner=BOB) == []
        await box.ack(*first)
        assert names(await box.claim(owner=BOB)) == ["later", "2", "3"]

    async def test_a_member_in_the_middle_that_is_not_due_is_passed(
        self, open_box: OpenBox, elapse: Elapse, now: Now
    ) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("later", due=await now() + seconds(10)), member("3"))
        claimed = await box.claim()
        assert names(claimed) == ["1", "3"]
        await box.ack(*claimed)
        await elapse(10)
        assert names(await box.claim()) == ["later"]

    async def test_a_head_that_is_put_off_lets_the_next_go(self, open_box: OpenBox, elapse: Elapse, now: Now) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        await box.put(member("1", due=await now() + seconds(10)))
        claimed = await box.claim()
        assert names(claimed) == ["2"]
        await box.ack(*claimed)
        await elapse(10)
        assert names(await box.claim()) == ["1"]

    # -- topics --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["due", "replayed"])
    async def test_workers_of_two_topics_cannot_stall_a_group(
        self, open_box: OpenBox, elapse: Elapse, now: Now, how: str
    ) -> None:
        """A message joins the line before a claimed one of another topic, whose worker then crashes."""
        box = open_box(fifo=True)
        if how == "due":
            await box.put(member("1", topic="t", due=await now() + seconds(5)), member("2", topic="u"))
        else:
            await box.put(member("1", topic="t"))
            await box.fail(*await box.claim())
            await box.put(member("2", topic="u"))
        assert names(await box.claim(topics={"u"})) == ["2"]
        await elapse(5)
        if how == "replayed":
            await box.store.replay(box.box, Filter())
        assert await box.claim(owner=BOB, topics={"t"}) == []
        await elapse(LEASE)
        order: list[str] = []
        for topic in "tutu":
            await box.store.reap(box.box, 10)
            claimed = await box.claim(owner=BOB, topics={topic})
            order += names(claimed)
            await box.ack(*claimed)
        assert order == ["1", "2"]

    async def test_a_key_that_is_free_again_keeps_its_place_in_the_call(
        self, open_box: OpenBox, elapse: Elapse
    ) -> None:
        box = open_box(fifo=True, retention=Retention(dedup_window=seconds(10)))
        await box.put(draft("1"))
        await box.ack(*await box.claim())
        await elapse(10)
        await box.put(member("1", topic="t"), member("2", topic="u"))
        assert names(await box.claim(topics={"t"})) == ["1"]

    # -- leases --------------------------------------------------------------------------------------------------

    async def test_a_batch_whose_lease_has_passed_is_claimed_again_in_order(
        self, open_box: OpenBox, elapse: Elapse
    ) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(4)))
        await box.claim(3, owner=ALICE)
        await elapse(LEASE)
        assert names(await box.claim(2, owner=BOB)) == ["0", "1"]
        assert await box.claim(owner=ALICE) == []

    @pytest.mark.parametrize("limit", [1, 10])
    async def test_a_reaped_batch_is_claimed_again_in_order(
        self, open_box: OpenBox, elapse: Elapse, limit: int
    ) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(3)))
        await box.claim(3)
        await elapse(LEASE)
        await box.store.reap(box.box, limit)
        assert names(await box.claim(owner=BOB)) == ["0", "1", "2"]

    async def test_two_owners_are_never_in_one_group(self, open_box: OpenBox, elapse: Elapse) -> None:
        """A worker that lost the front of its batch has lost the rest too, even if that is not claimed yet."""
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        _, second = await box.claim(2, owner=ALICE)
        await elapse(LEASE)
        assert names(await box.claim(1, owner=BOB)) == ["1"]
        assert list(await box.store.renew(box.box, [claim_of(second)], seconds(LEASE))) == [False]
        assert (await box.get("2")).claim is None

    async def test_a_renewed_member_holds_the_group(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        _, second = await box.claim(2, owner=ALICE)
        await box.store.renew(box.box, [claim_of(second)], seconds(LEASE * 2))
        await elapse(LEASE)
        assert await box.claim(owner=BOB) == []
        await elapse(LEASE)
        assert names(await box.claim(owner=BOB)) == ["1", "2"]

    # -- groups that cannot be claimed ---------------------------------------------------------------------------

    async def test_a_held_group_does_not_hide_the_next(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"))
        await box.claim(1)
        for later in (member("2"), member("3"), member("4", "h")):
            await elapse(1)
            await box.put(later)
        await elapse(1)
        assert names(await box.claim(1, owner=BOB)) == ["4"]

    async def test_a_group_that_stops_at_another_topic_does_not_hide_the_next(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2", topic="other"), member("3", "h"))
        assert names(await box.claim(2, topics={"order"})) == ["1", "3"]

    async def test_a_group_that_stops_at_a_backoff_does_not_hide_the_next(
        self, open_box: OpenBox, elapse: Elapse
    ) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        first, second = await box.claim(2)
        await box.settle(Settlement.release(claim_of(first)), Settlement.retry(claim_of(second), delay=seconds(20)))
        await elapse(1)
        await box.put(member("3", "h"))
        await elapse(1)
        assert names(await box.claim(2)) == ["1", "3"]

    # -- collapse ------------------------------------------------------------------------------------------------

    async def test_when_a_head_is_superseded_the_next_is_promoted(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("1", collapse_key="k"), member("2"), member("3"))
        await box.put(member("4", collapse_key="k"))
        assert names(await box.claim()) == ["2", "3", "4"]
