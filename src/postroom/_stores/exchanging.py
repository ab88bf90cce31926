"""Gives every store the verb `exchange`, so that a worker need not know whether its store has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from postroom._kernel.program import Pending
from postroom._stores.wrapper import AnyStore, StoreWrapper
from postroom.spi import Box, ClaimRequest, Exchanger, Settled, Settlement, StoredMessage

Exchanged: TypeAlias = tuple[Settled, list[StoredMessage]]
"""The results of the settlements, and the claimed messages."""


class ExchangingStore(StoreWrapper):
    """Settles and claims: in one transaction if the store inside can, otherwise one after the other.

    It wraps the retries and the events, so that each of two verbs is retried and observed separately.
    """

    def __init__(self, inner: AnyStore) -> None:
        super().__init__(inner)
        self._is_atomic = isinstance(inner, Exchanger)

    def exchange(self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest) -> Pending[Exchanged]:
        """Applies settlements and claims. Without settlements it only claims."""
        if settlements and self._is_atomic:
            pending: Pending[Exchanged] = self.inner.exchange(box, settlements, request)
            return pending
        return self._settle_and_claim(box, settlements, request)

    async def _settle_and_claim(self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest) -> Exchanged:
        settled: Settled = await self.inner.settle(box, settlements) if settlements else []
        return settled, await self.inner.claim(box, request)
