"""The caller's transaction, for stores with `features.transactional`."""

from __future__ import annotations

import pytest

from postroom.spi import ClaimRequest, Draft, Filter, Key, ReceiptStatus, Settlement, State, Store, Tx
from postroom.testing.conformance.base import (
    ALICE,
    LEASE,
    SOURCE,
    OpenBox,
    Suite,
    Transaction,
    claim_of,
    draft,
    needs,
    seconds,
)


class Changed(Exception):
    """Raised in a transaction to roll it back."""


class TransactionConformance(Suite):
    """Stores with `features.transactional`: a `Transactor`, or a store with the fixture `transaction`."""

    @pytest.fixture
    def begin(self, store: Store, transaction: Transaction | None) -> Transaction:
        needs(store.features.transactional, "transactional")
        if transaction is None:
            pytest.skip("write the fixture `transaction` to prove that this store joins a caller's transaction")
        return transaction

    async def test_what_is_put_commits_with_the_caller(self, open_box: OpenBox, begin: Transaction) -> None:
        box = open_box("outbox")
        await box.find()  # the schema is there
        async with begin() as tx:
            [receipt] = await box.store.put(box.box, [draft("1")], tx=tx)
            assert receipt.is_new
            assert await box.find() == [], "it can be seen before the caller has committed"
        assert len(await box.find()) == 1

    async def test_without_a_transaction_a_put_commits_itself(self, open_box: OpenBox, begin: Transaction) -> None:
        box = open_box("outbox")
        await box.put(draft("1"))
        async with begin() as tx:  # on another connection, which sees only what is committed
            [receipt] = await box.store.put(box.box, [draft("1")], tx=tx)
        assert receipt.status is ReceiptStatus.DUPLICATE

    async def test_every_verb_rolls_back_with_the_caller(self, open_box: OpenBox, begin: Transaction) -> None:
        box = open_box()
        await box.bury(draft("dead"))
        await box.put(draft("claimed"))
        claimed = await box.take()
        await box.put(draft("waiting"), draft("unwanted"))
        before = await box.find()

        async def change(tx: Tx) -> None:
            await box.store.put(box.box, [draft("new"), draft("waiting", payload="changed")], tx=tx)
            await box.store.settle(box.box, [Settlement.done(claim_of(claimed))], tx=tx)
            await box.store.replay(box.box, Filter(), tx=tx)
            await box.store.record(box.box, [Draft(SOURCE, "seen")], tx=tx)
            assert await box.store.cancel(box.box, Filter(keys=(Key(SOURCE, "unwanted"),)), tx=tx)
            await box.store.mark(box.box, [Key(SOURCE, "dead")], "processed", tx=tx)
            assert await box.store.claim(box.box, ClaimRequest(ALICE, seconds(LEASE), 10), tx=tx)
            raise Changed

        with pytest.raises(Changed):
            async with begin() as tx:
                await change(tx)
        assert await box.find() == before

    async def test_a_cancellation_commits_with_the_caller(self, open_box: OpenBox, begin: Transaction) -> None:
        box = open_box()
        await box.put(draft("1"))
        async with begin() as tx:
            await box.store.put(box.box, [draft("2")], tx=tx)
            keys = (Key(SOURCE, "1"), Key(SOURCE, "2"))
            assert await box.store.cancel(box.box, Filter(keys=keys), tx=tx) == [*keys]
            assert await box.state("1") is State.WAITING
        assert [await box.state(name) for name in "12"] == [State.DONE, State.DONE]

    async def test_a_settlement_commits_with_the_caller(self, open_box: OpenBox, begin: Transaction) -> None:
        box = open_box()
        await box.put(draft("1"))
        message = await box.take()
        async with begin() as tx:
            assert list(await box.store.settle(box.box, [Settlement.done(claim_of(message))], tx=tx)) == [True]
            assert await box.state("1") is State.CLAIMED
        assert await box.state("1") is State.DONE
