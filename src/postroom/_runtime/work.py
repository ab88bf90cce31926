"""Handles the messages in hand: `concurrency` tasks take units of work and call their handlers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from itertools import chain as chained

from postroom._boxes.handlers import Handler, Handlers
from postroom._kernel.decide import Outcome
from postroom._kernel.message import HeldMessage
from postroom._kernel.policy import Box
from postroom._kernel.settlement import ClaimSettlement
from postroom._runtime.execute import Executor, outcome_of
from postroom._runtime.fault import Fault
from postroom._runtime.handler_transaction import HandlerTransactions
from postroom._runtime.in_hand import InHand
from postroom._runtime.message_log import MessageLog
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.plan import Backlog, Chain, WorkUnit, plan
from postroom._runtime.results import Results
from postroom._runtime.schedule import PollSchedule
from postroom.errors import Undecodable

_log = logging.getLogger("postroom")

YIELD_AFTER_SECONDS = 0.005
"""How long handlers that never wait may run before the event loop runs other tasks."""


class Work:
    """The units of work in hand, and the tasks that do them."""

    def __init__(
        self,
        box: Box,
        handlers: Handlers,
        in_hand: InHand,
        outcomes: Outcomes,
        schedule: PollSchedule,
        executor: Executor,
        results: Results,
        transactions: HandlerTransactions,
        log: MessageLog,
        slots: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        """`slots`: entered while a unit is done. None: the tasks are the limit."""
        self._slots = slots
        self._box = box
        self._handlers = handlers
        self._in_hand = in_hand
        self._outcomes = outcomes
        self._schedule = schedule
        self._executor = executor
        self._results = results
        self._transactions = transactions
        self._log = log
        self.where = executor.where
        self._backlog = Backlog()
        self._ready = asyncio.Event()
        """Set when a unit of the backlog may have become free."""
        self._handling: set[int] = set()
        """Messages that handlers have at this moment."""
        self._busy: Counter[Handler | None] = Counter()
        """Calls under way, by handler."""
        self._is_stopping = False
        self.enough_waiting = max(box.work.batch_size // 2, 1)
        """How many messages may wait for a handler that is full before no more of its topic are claimed."""

    def begin(self, messages: list[HeldMessage]) -> None:
        """Adds messages to the backlog."""
        fifo, concurrency = self._box.order.fifo, self._box.work.concurrency
        self._backlog.extend(plan(messages, self._handlers, fifo=fifo, concurrency=concurrency))
        self._ready.set()
        if self._is_stopping:
            self.stop()  # it was called while the claim was under way

    def wake(self) -> None:
        """Makes the tasks check the backlog again."""
        self._ready.set()

    def stop(self) -> None:
        """Releases the messages that are not begun, and begins with no others."""
        self._is_stopping = self._transactions.is_stopping = True
        for unit in chained(*self._backlog.clear()):
            self._outcomes.release(unit.messages)

    def clear(self) -> None:
        self._backlog.clear()

    # -- which unit is next --------------------------------------------------------------------------------------

    def waiting_for_handlers(self) -> dict[Handler, int]:
        """Returns how many messages wait for each handler that is full."""
        if not self._backlog.waiting:  # nearly always: only handlers with a limit are counted
            return {}
        return {handler: count for handler, count in self._backlog.waiting.items() if self._is_full(handler)}

    def _is_full(self, handler: Handler) -> bool:
        return handler.concurrency is not None and self._busy[handler] >= handler.concurrency

    def _is_free(self, unit: WorkUnit) -> bool:
        """Returns True if a unit can begin."""
        if unit.handler is not None and self._is_full(unit.handler):
            return False
        if self._in_hand.suspect is not None and unit.messages[0].id == self._in_hand.suspect:
            return len(self._in_hand) == 1 and not self._schedule.under_way
        # A handler may still have one of the messages under an earlier lease, which was lost.
        return not self._handling or self._handling.isdisjoint(message.id for message in unit.messages)

    # -- the tasks -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Does units of work until it is cancelled. One of `concurrency` tasks.

        A handler may cancel the task in which it runs, at once or later. That does not end the worker.
        """
        while not self._executor.closing:
            try:
                await self._do_units()
            except asyncio.CancelledError:
                if self._executor.is_ending:
                    raise
                _log.warning("%s a handler has cancelled the task in which it ran; the worker goes on", self.where)
                task = asyncio.current_task()
                while task is not None and task.uncancel():
                    pass

    async def _do_units(self) -> None:
        began = time.monotonic()
        while not self._executor.closing:  # a handler may have caught the cancellation of the worker
            chain = self._backlog.take(self._is_free)
            if chain is None:
                self._ready.clear()
                await self._ready.wait()
                began = time.monotonic()
                continue
            if self._slots is None:
                await self._do_first(chain)
            else:
                async with self._slots:
                    await self._do_first(chain)
            if time.monotonic() - began > YIELD_AFTER_SECONDS:
                await asyncio.sleep(0)
                began = time.monotonic()

    async def _do_first(self, chain: Chain) -> None:
        """Does the first unit of a chain. If it succeeds, the rest is next; otherwise the rest is released."""
        unit = chain.popleft()
        try:
            succeeded = await self._do(unit)
        except BaseException:  # a cancellation by a handler, or a fault: no message may stay in hand for ever
            pending = self._outcomes.claims()
            for left in (unit, *chain):
                self._outcomes.release(m for m in left.messages if m.lease.claim not in pending and m in self._in_hand)
            self._outcomes.exchange_due.set()
            raise
        if chain and succeeded and not self._is_stopping:
            self._backlog.resume(chain)
            return
        for unit in chain:
            self._outcomes.release(unit.messages)
        if self._outcomes.frees_others:
            self._schedule.wake()  # the exchange that settles this can claim, too
        self._outcomes.exchange_due.set()

    async def _do(self, unit: WorkUnit) -> bool:
        """Handles a unit. Returns True if every message succeeded."""
        handler = unit.handler
        one_by_one = handler is not None and handler.is_plain
        if not one_by_one and any(message.lease.lost for message in unit.messages):
            self._results.drop(message for message in unit.messages if message.lease.lost)
            unit = unit._replace(messages=[message for message in unit.messages if not message.lease.lost])
            if unit.ordered:
                self._outcomes.release(unit.messages)
                return False
            if not unit.messages:
                return True
        ids = [message.id for message in unit.messages]
        self._handling.update(ids)
        self._busy[handler] += 1
        if handler is not None and self._backlog.waiting[handler] >= self.enough_waiting:
            self._outcomes.exchange_due.set()  # messages that wait for a full handler leave room for others
        try:
            if handler is not None and one_by_one:
                return await self._handle_each(handler, unit.messages, ordered=unit.ordered)
            result = await self._handle_together(unit)
            return await self._handle_alone(unit, result) if isinstance(result, Fault) else result
        finally:
            self._busy[handler] -= 1
            self._handling.difference_update(ids)
            if self._backlog:
                self._ready.set()  # a unit may have waited for this one

    # -- calling handlers ----------------------------------------------------------------------------------------

    async def _handle_each(  # noqa: C901 - in one function: another coroutine would cost each message a tenth
        self, handler: Handler, messages: list[HeldMessage], *, ordered: bool
    ) -> bool:
        """Calls a handler that takes one message for one after the other. Each outcome can be stored at once.

        If `ordered`, the messages of a group behind a failure are released, and the result is False.
        The watchdog finds `handler` and `message` by their names.
        """
        executor, clock, exchange_due = self._executor, time.monotonic, self._outcomes.exchange_due
        add_outcome, new = self._outcomes.waiting.append, tuple.__new__
        task = asyncio.current_task()
        function = executor.direct(handler)
        failed_group: str | None = None
        began = clock()
        for index, message in enumerate(messages):
            if failed_group is not None and message.group == failed_group:
                continue
            # Before a message and not after it: no exchange may run between a failure and the release behind it.
            if clock() - began > YIELD_AFTER_SECONDS:
                await asyncio.sleep(0)
                began = clock()
            if self._is_stopping:
                self._outcomes.release(messages[index:])
                return False
            lease = message.lease
            outcome = Outcome.SUCCESS
            if lease.lost:
                pass
            elif function is None or type(message.payload) is Undecodable:
                outcome = await executor.run_one(handler, message)
            else:
                try:
                    result = await function(message)
                    if task is not None and task.cancelling():
                        await executor.end_cancellation()
                except BaseException as error:  # noqa: BLE001 - `failed` raises what is not the handler's error
                    outcome = await executor.failed(error)
                else:
                    if result is None and not lease.lost:  # nearly always: `Results.add`, without its calls
                        add_outcome(new(ClaimSettlement, (lease.claim, "done", None, None, False, None)))
                        exchange_due.set()
                        continue
                    outcome = outcome_of(result)
            if not self._results.add(message, outcome) and ordered:
                failed_group = message.group
                self._outcomes.release(_behind(messages, index))
        return failed_group is None

    async def _handle_together(self, unit: WorkUnit) -> bool | Fault:
        """Calls the handler once. Returns True if every message succeeded; or a fault, if the handler raised on a
        batch. Then nothing is settled, and each message must be handled alone."""
        if unit.handler is not None and unit.handler.transactional:
            return await self._transactions.run(unit)
        outcomes = await self._executor.run(unit)
        return outcomes if isinstance(outcomes, Fault) else self._results.add_all(unit, outcomes)

    async def _handle_alone(self, unit: WorkUnit, fault: Fault) -> bool:
        """Calls the handler for each message after it raised on the batch, so that a bad message does not use up the
        attempts of the others (decision 0011)."""
        self._log.batch_failed(unit.handler, unit.messages, fault)
        succeeded = True
        for index, message in enumerate(unit.messages):
            if succeeded or not unit.ordered:  # no exchange may run between a failure and the release behind it
                await asyncio.sleep(0)  # handlers that never wait must not block the event loop
            if self._is_stopping or (unit.ordered and not succeeded):
                self._outcomes.release(unit.messages[index:])
                return False
            if message.lease.lost:
                self._results.drop([message])
                succeeded = False
                continue
            succeeded = (await self._handle_together(unit._replace(messages=[message]))) is True and succeeded
        return succeeded


def _behind(messages: list[HeldMessage], index: int) -> Iterator[HeldMessage]:
    """Yields the messages that follow one in its group."""
    for message in messages[index + 1 :]:
        if message.group != messages[index].group:
            return
        yield message
