"""The recorded order of a box, for stores that are an `OrderRecorder`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from postroom.spi import Box, Filter, Order, OrderRecorder, Store
from postroom.testing.conformance.base import Suite, Transaction, draft, needs

EVERYTHING = Filter()
FIFO, PLAIN = Box("inbox", "box", Order(fifo=True)), Box("inbox", "box")


class OrderConformance(Suite):
    """`record_order`."""

    @pytest.fixture
    def ordered(self, store: Store) -> OrderRecorder:
        if not isinstance(store, OrderRecorder):
            pytest.skip("this store does not record the order of its boxes: it has no verb `record_order`")
        return store

    @pytest.mark.parametrize("box", [FIFO, PLAIN], ids=["fifo", "none"])
    async def test_the_first_order_is_recorded(self, ordered: OrderRecorder, box: Box) -> None:
        other = PLAIN if box is FIFO else FIFO
        for _ in range(2):
            assert await ordered.record_order(box) is box.order.fifo
            assert await ordered.record_order(other) is box.order.fifo

    async def test_each_box_has_its_own_order(self, ordered: OrderRecorder) -> None:
        assert await ordered.record_order(FIFO) is True
        assert await ordered.record_order(replace(PLAIN, name="other")) is False
        assert await ordered.record_order(replace(PLAIN, kind="outbox")) is False

    async def test_an_order_can_be_changed(self, ordered: OrderRecorder) -> None:
        assert await ordered.record_order(PLAIN) is False
        assert await ordered.record_order(FIFO, change=True) is True
        assert await ordered.record_order(PLAIN) is True
        assert await ordered.record_order(PLAIN, change=True) is False
        assert await ordered.record_order(replace(FIFO, name="new"), change=True) is True

    async def test_of_several_at_the_same_time_one_decides(self, ordered: OrderRecorder, store: Store) -> None:
        await store.find(replace(PLAIN, name="other"), EVERYTHING)  # the schema is there
        recorded = await asyncio.gather(*(ordered.record_order(box) for box in (FIFO, PLAIN) * 4))
        assert len(set(recorded)) == 1
        assert await ordered.record_order(PLAIN) is recorded[0]

    async def test_a_caller_who_may_wait_records_nothing(
        self, ordered: OrderRecorder, store: Store, transaction: Transaction | None
    ) -> None:
        begin = self._begin(store, transaction)
        await store.find(PLAIN, EVERYTHING)  # the schema is there
        async with begin() as tx:
            assert await ordered.record_order(FIFO, tx=tx) is None
            await store.put(PLAIN, [draft("1")], tx=tx)
        assert await ordered.record_order(PLAIN) is False
        async with begin() as tx:
            assert await ordered.record_order(FIFO, tx=tx) is False

    async def test_a_change_commits_with_the_caller(
        self, ordered: OrderRecorder, store: Store, transaction: Transaction | None
    ) -> None:
        begin = self._begin(store, transaction)
        assert await ordered.record_order(PLAIN) is False

        async def change(tx: object) -> None:
            assert await ordered.record_order(FIFO, change=True, tx=tx) is True
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with begin() as tx:
                await change(tx)
        assert await ordered.record_order(FIFO) is False
        async with begin() as tx:
            await ordered.record_order(FIFO, change=True, tx=tx)
        assert await ordered.record_order(PLAIN) is True

    @staticmethod
    def _begin(store: Store, transaction: Transaction | None) -> Transaction:
        needs(store.features.transactional, "transactional")
        if transaction is None:
            pytest.skip("write the fixture `transaction` to prove that this store joins a caller's transaction")
        return transaction
