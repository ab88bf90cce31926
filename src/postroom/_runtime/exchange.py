"""Exchanges with the store: hand in outcomes and claim messages, in one transaction if the store can.

An exchange is due when an outcome waits, or when it is time to claim and there is room. `Exchanges.run` checks this,
clears the event `exchange_due` and waits for it, without a suspension point between these steps. Everything that can
make an exchange due (a new outcome, a wake-up, free room, the end of another exchange) sets the event after it has
changed the state. So a change either comes before the check, which sees it, or ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.policy import Box
from postroom._kernel.queries import ClaimRequest
from postroom._kernel.settlement import ClaimSettlement
from postroom._room_store import WorkerStore
from postroom._runtime.capacity import Capacity
from postroom._runtime.in_hand import InHand
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.reclaims import PendingReclaim
from postroom._runtime.schedule import ClaimStart, PollSchedule, StoreBackoff, now
from postroom._runtime.visit_control import VisitControl
from postroom._runtime.work import Work
from postroom.spi import StoredMessage

_log = logging.getLogger("postroom")

_lost_leases = attrgetter("lost_leases")


class Exchanges:
    """The exchanges of one worker with its store. At most two are under way at the same time."""

    def __init__(
        self,
        store: WorkerStore,
        box: Box,
        owner: UUID,
        where: str,
        in_hand: InHand,
        outcomes: Outcomes,
        schedule: PollSchedule,
        capacity: Capacity,
        work: Work,
        visit: VisitControl | None = None,
    ) -> None:
        """`visit`: limits this visit; None for a worker with one store."""
        self._store = store
        self._box = box
        self._owner = owner
        self._where = where
        self._in_hand = in_hand
        self._outcomes = outcomes
        self._due = outcomes.exchange_due
        self._schedule = schedule
        self._capacity = capacity
        self._work = work
        self._visit = visit
        self._store_backoff = StoreBackoff()
        self._is_stopping = False
        self.is_draining = False
        """Whether it ends when nothing more can be claimed. An error of the store ends it too. But a visit goes on
        while it has messages in hand: their outcomes must be stored."""
        self.claimed = 0
        """Messages that were claimed so far."""
        self.last_error: str | None = None
        """The type of the store's error, if the last exchange failed."""

    # -- when an exchange is due ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Makes one exchange after the other, until `stop` was called and nothing is in hand."""
        while not (self._is_stopping and not self._in_hand):
            check_cancelled()
            limit = self._limit_if_due()
            if limit is None:
                await self._wait_until_due()
            else:
                await self._exchange(limit)
                self._due.set()  # the other task may wait for the end of this exchange

    def stop(self) -> None:
        """Claims no more, and does not wait for a failed store any longer."""
        self._is_stopping = self._capacity.is_closed = True
        self._store_backoff.until = self._outcomes.refusal_backoff.until = 0.0
        self._due.set()

    def wake(self) -> None:
        """Makes a claim due: there may be messages to claim."""
        self._schedule.wake()
        self._due.set()

    def expect(self, seconds: float) -> None:
        """Makes a claim due in so many seconds."""
        if self._schedule.expect(now() + seconds):
            self._due.set()  # `_wait_until_due` computes the end of its wait again

    def _limit_if_due(self) -> int | None:
        """Returns how many messages the exchange that is due now claims, 0 if it claims none. None: none is due."""
        at = now()
        if at < self._store_backoff.until:
            return None
        if limit := self._claim_limit(at):
            return limit
        return 0 if self._outcomes.is_exchange_due or self._outcomes.is_refused_due(at) else None

    def _claim_limit(self, at: float) -> int:
        """Returns how many messages to claim: a batch, or none."""
        if self._capacity.has_topic_become_free():
            self._schedule.wake()  # the last claim left it out, so it proves nothing about this topic
        if not self._schedule.is_due(at):
            return 0
        if not self._capacity.has_room():
            return 0
        return self._box.work.batch_size if self._visit is None else self._visit.limit

    async def _wait_until_due(self) -> None:
        self._due.clear()
        at = self._schedule.next_at if self._capacity.has_room() else math.inf
        if self._outcomes.refused and not any(self._outcomes.under_way):
            at = min(at, self._outcomes.refusal_backoff.until)
        if now() < self._store_backoff.until:
            at = self._store_backoff.until
        if at == math.inf:
            await self._due.wait()
            return
        timer = asyncio.get_running_loop().call_at(at, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()

    # -- one exchange --------------------------------------------------------------------------------------------

    async def _exchange(self, limit: int) -> None:
        """Hands in outcomes, and claims up to `limit` messages."""
        started = now()
        is_refused = self._outcomes.is_refused_due(started)
        limit = 0 if is_refused else limit
        start = self._schedule.begin() if limit else None
        outcomes = self._outcomes.take_refused() if is_refused else self._outcomes.take()
        try:
            stored, messages = await self._call_store(outcomes, limit)
        except Exception as error:
            if self.is_draining and (self._visit is None or not self._in_hand):
                self._outcomes.put_back(outcomes)
                raise
            self._failed(error, outcomes, is_refused=is_refused)
            return
        except BaseException:
            self._outcomes.put_back(outcomes)
            raise
        finally:
            self._outcomes.under_way.remove(outcomes)
            if start is not None:
                self._schedule.end()
            if self._in_hand.suspect is not None:
                self._work.wake()  # a suspect waits until no claim is under way
        if self.last_error is not None:
            self._recovered()
        self._store_backoff.end()
        if is_refused:
            self._outcomes.refusal_backoff.end()
        self._settled(outcomes, stored)
        if start is not None:
            self._receive(start, messages, limit, started)
        elif any(map(self._outcomes.frees, outcomes)):
            self.wake()  # only now: a claim beside this exchange may have come before it was committed

    def _recovered(self) -> None:
        self.last_error = None
        if self._visit is None:
            _log.info("%s the store works again", self._where)
        else:
            self._visit.recovered()

    async def _call_store(
        self, outcomes: list[ClaimSettlement], limit: int
    ) -> tuple[Sequence[bool], list[StoredMessage]]:
        if not limit:
            return await self._store.settle(self._box, outcomes), []
        later: list[float] = []
        request = ClaimRequest(
            self._owner,
            self._box.work.lease,
            limit,
            self._capacity.topics_to_claim(),
            self._in_hand.may_have_expired(now()),
            suspects=self._schedule.under_way == 1,  # only one of two claims may return a suspect
            expect=later.append,  # a store may call it in a thread
        )
        result = await self._store.exchange(self._box, outcomes, request)
        for seconds in later:
            self.expect(seconds)
        return result

    def _failed(self, error: Exception, outcomes: list[ClaimSettlement], *, is_refused: bool) -> None:
        """Keeps the outcomes of a failed exchange and pauses. `is_refused`: it handed in a refused outcome alone."""
        if self._store.is_transient(error):
            self._outcomes.put_back(outcomes)
            self._back_off(self._store_backoff, error)
        elif is_refused:
            self._outcomes.refused_again(outcomes[0])
            self._back_off(self._outcomes.refusal_backoff, error)
        else:
            self._outcomes.refused.extend(outcomes)
            self._back_off(self._store_backoff, error)

    def _back_off(self, backoff: StoreBackoff, error: Exception) -> None:
        """Pauses after an error of the store. Only `stop` ends the pause early."""
        if now() < backoff.until:
            return  # the other exchange has failed, too, and logged it
        self.last_error = type(error).__name__
        if self._visit is not None:
            self._visit.failed(error)
            backoff.begin(now())
            return
        is_transient = self._store.is_transient(error)  # a traceback is of use only for other errors
        self._store.errors.log(
            logging.ERROR,
            "%s the store failed (%s); trying again in %.1f s",
            self._where,
            self._store.errors.of(error),
            backoff.seconds,
            error=None if is_transient else error,
        )
        backoff.begin(now())

    # -- after an exchange ---------------------------------------------------------------------------------------

    def _settled(self, outcomes: list[ClaimSettlement], stored: Sequence[bool]) -> None:
        for settlement, is_stored in self._in_hand.settle(outcomes, stored):
            if is_stored and settlement.delay:
                self.expect(settlement.delay.total_seconds())
            elif (newer := self._in_hand.newer_claim(settlement.target)) is not None:
                self._outcomes.add(settlement._replace(target=newer))
            else:
                self._in_hand.remove(settlement.target, is_lost=True)
        if self._in_hand.has_pending_reclaims:
            for settlement, is_stored in zip(outcomes, stored, strict=True):
                decided = self._in_hand.decide_reclaim(settlement.target, is_stored=is_stored)
                if decided is not None:
                    self._resume(decided)

    def _resume(self, decided: PendingReclaim) -> None:
        """Begins with messages that were claimed again, now that it is known whether their outcomes are stored."""
        ready = self._in_hand.resume(decided)
        if decided.refused and self._box.order.fifo:
            self._outcomes.release(ready)  # the message before them in their group has another outcome to come
        else:
            self._work.begin(ready)

    def _receive(self, start: ClaimStart, messages: list[StoredMessage], limit: int, started: float) -> None:
        # A claim returns a suspect alone. There may be more messages behind it.
        more = any(map(_lost_leases, messages))
        self._schedule.learn(start, len(messages), limit, now(), polls=not self.is_draining, more=more)
        if messages:
            self.claimed += len(messages)
            received = self._in_hand.receive(messages, started, self._outcomes.is_pending)
            self._outcomes.release(received.behind)
            self._work.begin(received.ready)
            if self._visit is not None and not self._visit.claimed(len(messages)):
                self._is_stopping = self._capacity.is_closed = True
        elif self.is_draining:
            # A message in hand, or one that another claim brings, may free a group or be ready again.
            self._is_stopping |= not self._in_hand and not self._schedule.under_way
