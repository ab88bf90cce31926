"""The pump: the worker of one box in one process (docs/decisions/0006).

Its parts, each in its module: the messages *in hand*; the *outcomes* that are not stored yet; the *exchanges* with the
store, which hand in outcomes and claim messages; the *work*, which calls handlers; the renewal of *leases*.
"""

from __future__ import annotations

import asyncio
import logging

from postroom._boxes.handlers import Handlers
from postroom._kernel.cancellation import cancel_once
from postroom._kernel.ids import OwnerToken
from postroom._kernel.observer import Event
from postroom._kernel.policy import Box
from postroom._kernel.texts import escape
from postroom._room_store import WorkerStore
from postroom._runtime.capacity import MAX_EXCHANGES, Capacity
from postroom._runtime.exchange import Exchanges
from postroom._runtime.execute import Executor
from postroom._runtime.handler_transaction import HandlerTransactions
from postroom._runtime.in_hand import InHand
from postroom._runtime.leases import LeaseRenewal
from postroom._runtime.message_log import MessageLog
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.results import Results
from postroom._runtime.schedule import PollSchedule, now
from postroom._runtime.visit_control import VisitControl
from postroom._runtime.work import Work

_log = logging.getLogger("postroom")

CANCEL_SECONDS = 5.0
"""How long a cancelled handler may take to end."""


class Pump:
    """Claims, handles and settles the messages of one box."""

    def __init__(
        self,
        store: WorkerStore,
        box: Box,
        handlers: Handlers,
        *,
        topics: frozenset[str] | None = None,
        visit: VisitControl | None = None,
    ) -> None:
        """`topics`: those that it claims; None is all. `visit`: limits this visit to one of many stores."""
        self.box = box
        self._store = store
        self._is_visit = visit is not None
        self.owner = OwnerToken.new()
        where = escape(f"store={store.name} box={box.key}")
        log = MessageLog(box, where, store.errors)
        pauses = (*box.work.idle, box.work.read_delay)
        schedule = PollSchedule(*(pause.total_seconds() for pause in pauses))
        self._in_hand = InHand(box, store.name, handlers, self._message_removed)
        self._outcomes = Outcomes(box, self._in_hand, schedule.wake, joins=store.features.joins)
        self._executor = Executor(box, where, self._emit, store.is_observed)
        self._results = Results(box, handlers, self._in_hand, self._outcomes, log, store.errors, self._emit)
        transactions = HandlerTransactions(store, box, self._executor, self._results, self._outcomes, self._in_hand)
        self._work = Work(
            box,
            handlers,
            self._in_hand,
            self._outcomes,
            schedule,
            self._executor,
            self._results,
            transactions,
            log,
            None if visit is None else visit.slots,
        )
        capacity = Capacity(box, handlers, topics, self._in_hand, self._outcomes, schedule, self._work)
        self._exchanges = Exchanges(
            store, box, self.owner, where, self._in_hand, self._outcomes, schedule, capacity, self._work, visit
        )
        self._leases = LeaseRenewal(store, box, where, self._in_hand, self._outcomes)
        self.where = where

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until `stop` was called and nothing is in hand."""
        await self.release_all()  # an earlier run may have failed
        self._executor.closing, self._executor.runner = False, asyncio.current_task()
        # A visit has one exchange at a time, so that a second claim does not begin before its visit ends.
        count = MAX_EXCHANGES if self._store.features.concurrent and not self._is_visit else 1
        exchanges = [asyncio.create_task(self._exchanges.run()) for _ in range(count)]
        helpers = [asyncio.create_task(self._work.run()) for _ in range(self.box.work.concurrency)]
        if self.box.work.renew:
            helpers.append(asyncio.create_task(self._leases.run()))
        tasks = [*exchanges, *helpers]
        try:
            await _until_all_end(exchanges, helpers)
        finally:
            self._executor.closing = True
            for task in tasks:
                cancel_once(task)
            _, running = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
            if running:
                _log.error("%s %d handlers ignore that they were cancelled; left behind", self.where, len(running))

    async def drain(self) -> int:
        """Runs until nothing more can be claimed. Returns how many messages were claimed."""
        self._exchanges.is_draining, self._results.raised = True, {}
        try:
            await self.run()
        finally:
            await self.release_all()
        return self.claimed

    def stop(self) -> None:
        """Claims no more and releases what is not begun. `run` ends when the rest is done."""
        self._work.stop()
        self._exchanges.stop()

    async def release_all(self) -> None:
        """Releases everything that is in hand, uncounted: after a failure, or if a stop takes too long."""
        self._work.clear()
        pending = {settlement.target.id for settlement in self._outcomes.waiting}
        self._outcomes.release(message for message in self._in_hand if message.id not in pending)
        outcomes = self._outcomes.remove_all()
        self._in_hand.clear()
        if outcomes:
            await self._store.settle(self.box, outcomes)

    # -- wake-ups ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Makes a claim due: there may be messages to claim."""
        self._exchanges.wake()

    def expect(self, seconds: float) -> None:
        """Makes a claim due in so many seconds: a message becomes due then."""
        self._exchanges.expect(seconds)

    def _message_removed(self) -> None:
        if self._in_hand.suspect is not None:
            self._work.wake()  # a suspect begins when nothing else is in hand
        if self._exchanges.is_draining and not self._in_hand:
            self.wake()  # the last settlement may have freed a group

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> int:
        """How many messages are in hand."""
        return len(self._in_hand)

    @property
    def claimed(self) -> int:
        """How many messages were claimed so far."""
        return self._exchanges.claimed

    @property
    def last_error(self) -> str | None:
        """The type of the store's error, if the last exchange failed."""
        return self._exchanges.last_error

    @property
    def raised(self) -> dict[tuple[str, int], BaseException]:
        """After `drain`: the last error that a handler raised, by store and message."""
        return {(self._store.name, id_): error for id_, error in (self._results.raised or {}).items()}

    @property
    def threads(self) -> int:
        """Threads in which handlers run that were cancelled."""
        return self._executor.threads

    @property
    def is_overdue(self) -> bool:
        """True if a lease of a message in hand may have ended, and its outcome could still be stored."""
        return self._in_hand.is_overdue(now())

    def _emit(
        self, verb: str, given: object, result: object, seconds: float, error: BaseException | None = None
    ) -> None:
        if self._store.is_observed(verb):
            self._store.emit(Event(verb, self._store.name, self.box, given, result, error, seconds))


async def _until_all_end(tasks: list[asyncio.Task[None]], helpers: list[asyncio.Task[None]]) -> None:
    """Waits until all tasks have ended. Raises what one of them raises, and if a helper ends before them."""
    running: set[asyncio.Task[None]] = {*tasks, *helpers}
    while any(not task.done() for task in tasks):
        ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
            if task in helpers:
                raise RuntimeError("a part of the worker has ended by itself")
