"""Durable stores: messages survive the store object, and several stores can use the same data."""

from __future__ import annotations

import asyncio

import pytest

from postroom.spi import ReceiptStatus, State, Store
from postroom.testing.conformance.base import (
    ALICE,
    BOB,
    LEASE,
    BoxKind,
    BoxUnderTest,
    Elapse,
    OpenBox,
    Reopen,
    Suite,
    claim_of,
    draft,
    names,
    needs,
)


class DurabilityConformance(Suite):
    """Stores with `features.durable`. Needs the fixture `reopen`."""

    @pytest.fixture
    def open_again(self, store: Store, reopen: Reopen | None) -> Reopen:
        needs(store.features.durable, "durable")
        if reopen is None:
            pytest.skip("write the fixture `reopen` to prove that messages outlive the store's object")
        return reopen

    async def test_what_was_accepted_is_there_when_the_store_is_opened_again(
        self, open_box: OpenBox, kind: BoxKind, open_again: Reopen, elapse: Elapse
    ) -> None:
        box = open_box(kind)
        await box.finish(draft("done"))
        await box.bury(draft("dead"))
        await box.put(draft("claimed"))
        claimed = await box.take()
        await box.put(draft("waiting", payload=b"\x00\xff", format="bytes"))
        before = await box.find()
        await box.store.close()
        again = BoxUnderTest(open_again(), box.box)
        try:
            assert await again.find() == before
            assert (await again.put_one(draft("done"))).status is ReceiptStatus.DONE
            assert await again.ack(claimed) == [True]
            await elapse(LEASE)
            assert names(await again.claim()) == ["waiting"]
        finally:
            await again.store.close()

    async def test_two_stores_on_one_database_share_no_claim(
        self, open_box: OpenBox, kind: BoxKind, open_again: Reopen
    ) -> None:
        box = open_box(kind)
        other = BoxUnderTest(open_again(), box.box)
        try:
            await box.put(*(draft(str(n)) for n in range(60)))
            claims = await asyncio.gather(
                *(desk.claim(7, owner=owner) for _ in range(6) for desk, owner in ((box, ALICE), (other, BOB)))
            )
            claimed = [message for batch in claims for message in batch]
            assert len({message.id for message in claimed}) == len(claimed) == 60
            assert {claim_of(message).owner for message in claimed} == {ALICE, BOB}
            assert all(await other.ack(*claimed))
            assert (await box.counts())[State.DONE] == 60
        finally:
            await other.store.close()

    async def test_two_stores_that_put_one_key_at_once_agree(
        self, open_box: OpenBox, kind: BoxKind, open_again: Reopen
    ) -> None:
        box = open_box(kind)
        other = BoxUnderTest(open_again(), box.box)
        try:
            await box.find()  # the schema is there
            receipts = await asyncio.gather(*(desk.put_one(draft("1")) for _ in range(5) for desk in (box, other)))
            assert sorted(receipt.status.value for receipt in receipts) == ["duplicate"] * 9 + ["new"]
            assert len({receipt.id for receipt in receipts}) == 1
        finally:
            await other.store.close()
