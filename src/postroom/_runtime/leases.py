"""Renews the leases of everything that a worker has in hand."""

from __future__ import annotations

import asyncio
import logging

from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.policy import Box
from postroom._room_store import WorkerStore
from postroom._runtime.in_hand import InHand
from postroom._runtime.message_log import name
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.schedule import now

_log = logging.getLogger("postroom")


class LeaseRenewal:
    """Renews all leases in one call, when half of the lease has passed, or the fraction that the box sets."""

    def __init__(self, store: WorkerStore, box: Box, where: str, in_hand: InHand, outcomes: Outcomes) -> None:
        self._store = store
        self._box = box
        self._where = where
        self._in_hand = in_hand
        self._outcomes = outcomes

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            check_cancelled()
            await asyncio.sleep(self._box.work.lease.total_seconds() * self._box.work.renew)
            if self._in_hand:
                try:
                    await self._renew()
                except Exception as error:  # noqa: BLE001 - the next renewal may succeed; otherwise the leases end
                    self._store.errors.log(logging.WARNING, "%s leases could not be renewed", self._where, error=error)

    async def _renew(self) -> None:
        started, lease = now(), self._box.work.lease
        held = list(self._in_hand)
        claims = [message.lease.claim for message in held]
        renewed = await self._store.renew(self._box, claims, lease)
        self._in_hand.leases_changed()
        for message, claim, is_renewed in zip(held, claims, renewed, strict=True):
            if is_renewed:
                message.lease.ends = started + lease.total_seconds()
            elif message.lease.claim is not claim:
                pass  # this worker has claimed it again meanwhile
            elif message in self._in_hand and not self._outcomes.is_pending(message.id):
                # A pending outcome may have been stored, which ends the claim as it should.
                message.lease.lost = True
                _log.warning("%s lease lost while handling %s", self._where, name(message))
