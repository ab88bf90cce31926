"""Gives every store the verb `exchange`, so that a worker need not know whether its store has it."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._stores.wrapper import AnyStore, StoreWrapper
from postroom.spi import Box, ClaimRequest, Exchanger, Settled, Settlement, StoredMessage


class ExchangingStore(StoreWrapper):
    """Settles and claims: in one transaction if the store inside can, otherwise one after the other.

    It wraps the retries and the events, so that each of two verbs is retried and observed separately.
    """

    def __init__(self, inner: AnyStore) -> None:
        super().__init__(inner)
        self._is_atomic = isinstance(inner, Exchanger)

    async def exchange(
        self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest
    ) -> tuple[Settled, list[StoredMessage]]:
        """Applies settlements and claims. Without settlements it only claims."""
        settled: Settled = []
        messages: list[StoredMessage]
        if settlements and self._is_atomic:
            settled, messages = await self.inner.exchange(box, settlements, request)
            return settled, messages
        if settlements:
            settled = await self.inner.settle(box, settlements)
        messages = await self.inner.claim(box, request)
        return settled, messages
