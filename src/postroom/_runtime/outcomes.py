"""Outcomes of handlers that are not stored yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import chain

from postroom._kernel.message import Claim, HeldMessage
from postroom._kernel.policy import Box
from postroom._kernel.settlement import ClaimSettlement
from postroom._runtime.in_hand import InHand
from postroom._runtime.schedule import StoreBackoff

UNSTORABLE = "the outcome of its handler could not be stored"


class Outcomes:
    """The outcomes that wait for an exchange, and those that exchanges are handing in."""

    def __init__(self, box: Box, in_hand: InHand, wake: Callable[[], None], *, joins: bool = False) -> None:
        """`wake`: called when an outcome makes another message claimable."""
        self._box = box
        self._in_hand = in_hand
        self._wake = wake
        self.frees_others = box.order.fifo or (joins and box.can_have_joins)
        """Whether an outcome may make another message claimable: the next of its group, or what follows a join."""
        self.waiting: list[ClaimSettlement] = []
        """In the order in which they were added. The list object stays the same."""
        self.under_way: list[list[ClaimSettlement]] = []
        """One list for each exchange under way."""
        self.exchange_due = asyncio.Event()
        """Set after each change that may make an exchange due."""
        self.completing: set[int] = set()
        """Messages whose completion commits in the transaction of their handler."""
        self.refused: deque[ClaimSettlement] = deque()
        """Outcomes that the store has refused. Each is handed in alone, without a claim, so that an outcome which
        cannot be stored delays no other outcome and no claim."""
        self.refusal_backoff = StoreBackoff()
        """The pause after an outcome was refused alone. Claims and other outcomes do not wait for it."""

    # -- adding --------------------------------------------------------------------------------------------------

    def add(self, settlement: ClaimSettlement) -> None:
        self.waiting.append(settlement)
        if self.frees(settlement):
            self._wake()  # the exchange that stores it can claim, too
        self.exchange_due.set()

    def release(self, messages: Iterable[HeldMessage]) -> None:
        """Gives messages back to the store. No attempt is counted."""
        for message in messages:
            self.add(ClaimSettlement.release(message.lease.claim))

    def frees(self, settlement: ClaimSettlement) -> bool:
        """Returns True if a message may be claimable because of this outcome: the same, or another."""
        return self.frees_others or (settlement.verdict in {"retry", "release"} and not settlement.delay)

    # -- for an exchange -----------------------------------------------------------------------------------------

    @property
    def is_exchange_due(self) -> bool:
        """One exchange at a time hands in outcomes, so that they come together. A second joins for a whole batch."""
        if not any(self.under_way):
            return bool(self.waiting)
        return len(self.waiting) >= self._box.work.batch_size and not self._box.order.fifo

    @property
    def unsettled(self) -> int:
        return len(self.waiting) + len(self.refused) + sum(map(len, self.under_way))

    def is_refused_due(self, at: float) -> bool:
        """Returns True if it is time to hand in a refused outcome alone."""
        return bool(self.refused) and at >= self.refusal_backoff.until and not any(self.under_way)

    def take_refused(self) -> list[ClaimSettlement]:
        """Returns the first refused outcome, for an exchange without a claim."""
        taken = [self.refused.popleft()]
        self.under_way.append(taken)
        return taken

    def take(self) -> list[ClaimSettlement]:
        """Returns the outcomes for the next exchange, in order.

        Outcomes of one group never go in two exchanges at the same time, since they must not overtake each other.
        """
        waiting = self.waiting
        taken = waiting[:]
        waiting.clear()
        if self._box.order.fifo and any(self.under_way):
            leaving = {self._group_of(settlement) for settlement in chain(*self.under_way)} - {None}
            waiting[:0] = [settlement for settlement in taken if self._group_of(settlement) in leaving]
            taken = [settlement for settlement in taken if self._group_of(settlement) not in leaving]
        self.under_way.append(taken)
        return taken

    def _group_of(self, settlement: ClaimSettlement) -> str | None:
        return self._in_hand.group_of(settlement.target)

    def put_back(self, outcomes: list[ClaimSettlement]) -> None:
        """After an exchange that failed or was cancelled: the next one hands them in. That is harmless if they are
        stored, since each has a fence."""
        self.waiting[:0] = outcomes

    def refused_again(self, outcome: ClaimSettlement) -> None:
        """After the store has refused an outcome alone: the other refused outcomes go first. It loses the texts of its
        handler, in case the store refuses these."""
        self.refused.append(_without_texts(outcome, self._box.work.idle[1]))

    def remove_all(self) -> list[ClaimSettlement]:
        """Removes all outcomes that no exchange is handing in. Returns those that the store has not refused."""
        outcomes = self.waiting[:]
        self.waiting.clear()
        self.refused.clear()
        return outcomes

    # -- lookup -------------------------------------------------------------------------------------------------

    def is_pending(self, id_: int) -> bool:
        """Returns True if a message has an outcome that is not known to be stored."""
        if id_ in self.completing:
            return True
        return any(settlement.target.id == id_ for settlement in self._pending())

    def claims(self) -> set[Claim]:
        """The claims of all outcomes that are not known to be stored."""
        return {settlement.target for settlement in self._pending()}

    def _pending(self) -> Iterator[ClaimSettlement]:
        return chain(self.waiting, self.refused, *self.under_way)


def _without_texts(settlement: ClaimSettlement, delay: timedelta) -> ClaimSettlement:
    """Returns an outcome of the same kind, without the error text and the delay of its handler or backoff."""
    if settlement.verdict == "dead":
        return ClaimSettlement.dead(settlement.target, error=UNSTORABLE, counts=settlement.counts)
    if settlement.verdict == "retry":
        return ClaimSettlement.retry(settlement.target, delay=delay, error=UNSTORABLE)
    return settlement
