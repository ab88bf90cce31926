"""Settle and claim in one transaction."""

from __future__ import annotations

import pytest

from postroom.spi import ClaimRequest, Exchanger, Settlement, State, Store
from postroom.testing.conformance.base import (
    BOB,
    LEASE,
    OpenBox,
    Suite,
    claim_of,
    draft,
    names,
    seconds,
)


class ExchangeConformance(Suite):
    """`exchange`, for stores that are an `Exchanger`."""

    @pytest.fixture
    def exchanger(self, store: Store) -> Exchanger:
        if not isinstance(store, Exchanger):
            pytest.skip("this store has no `exchange`: a worker settles and claims by two calls")
        return store

    async def test_an_exchange_settles_and_then_claims(self, open_box: OpenBox, exchanger: Exchanger) -> None:
        box = open_box(fifo=True)
        await box.put(*(draft(str(n), group="g") for n in range(3)))
        [head] = await box.claim(1)
        unknown = claim_of(head)._replace(id=head.id + 1000)
        outcomes = [Settlement.done(unknown), Settlement.done(claim_of(head))]
        settled, claimed = await exchanger.exchange(box.box, outcomes, ClaimRequest(BOB, seconds(LEASE), 10))
        assert list(settled) == [False, True]
        assert names(claimed) == ["1", "2"]
        assert {claim_of(message).owner for message in claimed} == {BOB}
        assert await box.state("0") is State.DONE
