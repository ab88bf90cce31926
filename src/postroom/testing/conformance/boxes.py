"""Boxes of one store are independent."""

from __future__ import annotations

import pytest

from postroom.spi import BoxLister, Draft, Filter, Key, Purge, Reaped, ReceiptStatus, State
from postroom.testing.conformance.base import LEASE, SOURCE, BoxUnderTest, Elapse, OpenBox, Suite, draft, names, seconds


class BoxesConformance(Suite):
    """A verb changes and returns only messages of its box."""

    @pytest.fixture(params=[("inbox", "two"), ("outbox", "one"), ("inbox", "on")], ids=":".join)
    def pair(self, request: pytest.FixtureRequest, open_box: OpenBox) -> tuple[BoxUnderTest, BoxUnderTest]:
        """Returns the box inbox:one and another box, which must not change."""
        return open_box("inbox", "one"), open_box(*request.param)

    async def test_one_key_in_two_boxes_is_two_messages(self, pair: tuple[BoxUnderTest, BoxUnderTest]) -> None:
        for box in pair:
            assert (await box.put_one(draft("1", payload=box.box.key))).status is ReceiptStatus.NEW
        for box in pair:
            message = await box.take()
            assert message.payload == box.box.key
            assert await box.ack(message) == [True]
            assert len(await box.find()) == 1

    async def test_a_store_knows_its_boxes(self, pair: tuple[BoxUnderTest, BoxUnderTest]) -> None:
        one, two = pair
        if not isinstance(one.store, BoxLister):
            pytest.skip("this store does not know which boxes it has: it has no verb `boxes`")
        assert await one.store.boxes() == []
        for box in pair:
            await box.finish(draft("1"))
        assert await one.store.boxes() == sorted([one.box.key, two.box.key])

    async def test_ids_are_unique_in_a_store(self, pair: tuple[BoxUnderTest, BoxUnderTest]) -> None:
        one, two = pair
        receipts = [await one.put_one(draft("1")), await two.put_one(draft("1")), await one.put_one(draft("2"))]
        assert len({receipt.id for receipt in receipts}) == 3

    async def test_verbs_keep_to_their_box(self, pair: tuple[BoxUnderTest, BoxUnderTest], elapse: Elapse) -> None:
        one, beside = pair
        await beside.finish(draft("done"))
        await beside.bury(draft("dead"))
        await beside.put(draft("claimed"))
        await beside.take()
        await beside.put(draft("waiting", lifetime=seconds(1)))
        await beside.store.record(beside.box, [Draft(SOURCE, "seen")])
        before = await beside.find()
        await elapse(LEASE)
        assert await one.claim() == []
        assert await one.store.reap(one.box, 100) == Reaped(0, 0)
        assert await one.store.replay(one.box, Filter()) == []
        for state in (State.DONE, State.DEAD, State.SEEN):
            assert await one.store.purge(one.box, Purge(state, seconds(0))) == 0
        keys = [Key(SOURCE, name) for name in ["waiting", "seen"]]
        assert list(await one.store.mark(one.box, keys, "dead")) == [False, False]
        assert sum((await one.counts()).values()) == 0
        assert await beside.find() == before

    async def test_a_group_ends_at_its_box(self, open_box: OpenBox) -> None:
        one, two = open_box(name="one", fifo=True), open_box(name="two", fifo=True)
        await one.put(draft("1", group="g"))
        await two.put(draft("2", group="g"))
        assert names(await one.claim()) == ["1"]
        assert names(await two.claim()) == ["2"]
