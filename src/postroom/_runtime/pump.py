"""The pump: claims, dispatches and settles for one box of one store (docs/decisions/0006)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from typing import Any
from uuid import UUID

from postroom._faces.check import error_text
from postroom._faces.handlers import Handler, Handlers
from postroom._kernel.decide import Outcome, decide
from postroom._kernel.ids import OwnerToken
from postroom._kernel.message import Claim, Lease, Message
from postroom._kernel.policy import Box
from postroom._kernel.queries import Ask
from postroom._kernel.settlement import Settlement
from postroom._runtime.execute import Executor
from postroom._runtime.plan import Piece, plan

_log = logging.getLogger("postroom")

SLICE = 0.005
"""Seconds that handlers which never wait may keep the loop to themselves."""


class Pump:
    """Turns the waiting messages of a box into handled ones."""

    def __init__(self, store: Any, box: Box, handlers: Handlers, *, topics: frozenset[str] | None = None) -> None:
        self.box = box
        self.owner: UUID = OwnerToken.new()
        self._store = store
        self._handlers = handlers
        self._topics = topics
        self._executor = Executor(box, store.name)
        self._where = f"store={store.name} box={box.key}"
        self._most = 2 * box.work.batch_size
        self._in_hand: dict[int, tuple[Claim, Lease]] = {}
        self._decided: set[int] = set()
        """Of those in hand, the ones whose outcome is on its way."""
        self._lines: deque[list[Piece]] = deque()
        self._outcomes: list[Settlement] = []
        self._busy: dict[Handler, int] = {}
        self._work_is_here = asyncio.Event()
        self._turn_is_due = asyncio.Event()
        self._told_to_stop = asyncio.Event()
        self._stopping = False
        self._draining = False
        self.handled = 0
        """Messages that were claimed so far."""
        self.last_error: str | None = None
        """What the store raised last, if its last turn failed."""
        self._may_claim_at = 0.0
        self._pause = box.work.idle[0].total_seconds()

    # -- the turn ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`; then until nothing is in hand."""
        tasks = [asyncio.create_task(self._work()) for _ in range(self.box.work.concurrency)]
        if self.box.work.renew:
            tasks.append(asyncio.create_task(self._keep_leases()))
        try:
            while not (self._stopping and not self._in_hand):
                await self._wait_for_a_turn()
                await self._turn()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self) -> int:
        """Until nothing more can be claimed now; answers how many messages were."""
        self._draining = True
        await self.run()
        return self.handled

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    def wake(self) -> None:
        """A hint: there may be something to claim."""
        self._may_claim_at = 0.0
        self._turn_is_due.set()

    def _asks_for(self) -> int:
        """How many messages to claim now: none, or at least half of what fits."""
        room = self._most - len(self._in_hand)
        if self._stopping or room < self.box.work.batch_size:
            return 0
        return self.box.work.batch_size if asyncio.get_running_loop().time() >= self._may_claim_at else 0

    async def _wait_for_a_turn(self) -> None:
        if self._outcomes or self._asks_for():
            return
        self._turn_is_due.clear()
        pause: float | None = None
        if not self._stopping and self._most - len(self._in_hand) >= self.box.work.batch_size:
            pause = max(self._may_claim_at - asyncio.get_running_loop().time(), 0)
            pause = None if pause == math.inf else pause
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._turn_is_due.wait()

    async def _turn(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        limit = self._asks_for()
        if not outcomes and not limit:
            return
        try:
            settled, messages = await self._exchange(outcomes, limit)
        except BaseException as error:
            self._outcomes = outcomes + self._outcomes  # handing them in twice is harmless: each is fenced
            if not isinstance(error, Exception):
                raise
            self.last_error = type(error).__name__
            _log.exception("%s the store failed; trying again in %.1f s", self._where, self._pause)
            await self._rest()
            return
        self.last_error = None
        if self._draining and outcomes:
            self._may_claim_at = 0.0
        for settlement, kept in zip(outcomes, settled, strict=True):
            self._forget(settlement.target.id, kept=kept)  # type: ignore[union-attr]
        if limit:
            self._receive(messages, limit)

    async def _exchange(self, outcomes: list[Settlement], limit: int) -> tuple[list[bool], list[Message[Any]]]:
        if not limit:
            return await self._store.settle(self.box, outcomes), []
        ask = Ask(self.owner, self.box.work.lease, limit, self._topics)
        return await self._store.turn(self.box, outcomes, ask)

    async def _rest(self) -> None:
        """After an error: as when idle, longer each time, and cut short only by `stop`."""
        self._pause = min(self._pause * 2, self.box.work.idle[1].total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause):
                await self._told_to_stop.wait()
        if self._stopping:
            await asyncio.sleep(self.box.work.idle[0].total_seconds())  # the store may still come back

    def _receive(self, messages: list[Message[Any]], limit: int) -> None:
        now = asyncio.get_running_loop().time()
        shortest, longest = (delta.total_seconds() for delta in self.box.work.idle)
        if not messages:
            if self._draining:
                self._stopping = not self._in_hand
                self._may_claim_at = math.inf  # until what is in hand is settled: that may free a group
                return
            self._may_claim_at = now + self._pause
            self._pause = min(self._pause * 2, longest)
            return
        self._pause = shortest
        self._may_claim_at = now if self._draining or len(messages) == limit else now + shortest
        self.handled += len(messages)
        held = []
        for message in messages:
            lease = Lease()
            self._in_hand[message.id] = (message.claim, lease)  # type: ignore[assignment]
            held.append(message.under(lease))
        self._lines.extend(plan(held, self._handlers, fifo=self.box.order.fifo))
        self._work_is_here.set()

    def _forget(self, id_: int, *, kept: bool) -> None:
        held = self._in_hand.pop(id_, None)
        self._decided.discard(id_)
        if held is not None and not kept:
            held[1].lost = True

    # -- the work ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One of `concurrency` workers."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            line = self._next()
            if line is None:
                self._work_is_here.clear()
                await self._work_is_here.wait()
                began = loop.time()
                continue
            await self._do_line(line)
            self._turn_is_due.set()
            if loop.time() - began > SLICE:
                await asyncio.sleep(0)
                began = loop.time()

    def _next(self) -> list[Piece] | None:
        """The first line of pieces whose handler is free."""
        for index, line in enumerate(self._lines):
            handler = line[0].handler
            if handler is None or handler.concurrency is None or self._busy.get(handler, 0) < handler.concurrency:
                if index == 0:
                    return self._lines.popleft()
                del self._lines[index]
                return line
        return None

    async def _do_line(self, line: list[Piece]) -> None:
        """Pieces one after the other; in a group, the first that does not succeed gives the rest back."""
        for index, piece in enumerate(line):
            going_well = await self._do(piece)
            if self._stopping or (piece.ordered and not going_well):
                self._give_back([message for later in line[index + 1 :] for message in later.messages])
                return

    async def _do(self, piece: Piece) -> bool:
        """Answers whether every message succeeded."""
        messages = [message for message in piece.messages if not message.lease_lost]
        if len(messages) < len(piece.messages):
            self._drop(message for message in piece.messages if message.lease_lost)
            if piece.ordered:
                self._give_back(messages)
                return False
        if not messages:
            return True
        handler = piece.handler
        if handler is not None and handler.concurrency is not None:
            self._busy[handler] = self._busy.get(handler, 0) + 1
        try:
            piece = piece._replace(messages=messages)
            if handler is not None and handler.transactional:
                return await self._do_in_transaction(piece)
            return self._settle(piece, await self._executor.run(piece))
        finally:
            if handler is not None and handler.concurrency is not None:
                self._busy[handler] -= 1
                self._work_is_here.set()

    def _settle(self, piece: Piece, outcomes: list[Outcome]) -> bool:
        well = True
        for index, (message, outcome) in enumerate(zip(piece.messages, outcomes, strict=True)):
            if message.lease_lost:
                self._drop([message])
                well = False
                continue
            if piece.ordered and not well:
                self._give_back(piece.messages[index:])
                return False
            well = outcome.result == "success" and well
            self._decide(message, outcome)
        return well

    def _decide(self, message: Message[Any], outcome: Outcome) -> None:
        settlement = decide(outcome, message.claim, message.attempt, self.box.delivery)  # type: ignore[arg-type]
        if settlement.error is not None:
            settlement = settlement._replace(error=error_text("error", settlement.error))
        self._outcomes.append(settlement)
        self._decided.add(message.id)

    async def _do_in_transaction(self, piece: Piece) -> bool:
        """The handler's writes and the completion commit together, or not at all."""
        outcomes: list[Outcome] = []
        try:
            async with self._store.transaction() as tx:
                outcomes = await self._executor.run(piece, tx)
                if any(outcome.result != "success" for outcome in outcomes):
                    raise _RollBack  # noqa: TRY301 - this is how a transaction is ended
                done = [Settlement.done(message.claim) for message in piece.messages]  # type: ignore[arg-type]
                if not all(await self._store.settle(self.box, done, tx=tx)):
                    self._drop(piece.messages)
                    raise _RollBack  # noqa: TRY301
        except _RollBack:
            if all(outcome.result == "success" for outcome in outcomes):
                return False  # the claims were lost
            # What succeeded was rolled back with the rest: it is given back, uncounted.
            for message, outcome in zip(piece.messages, outcomes, strict=True):
                self._decide(message, Outcome.RETRY if outcome.result == "success" else outcome)
            return False
        except Exception as error:  # noqa: BLE001 - the transaction's trouble counts as the handler's
            _log.exception("%s the transaction of a handler failed", self._where)
            return self._settle(piece, [Outcome.FAILED.because(type(error).__name__)] * len(piece.messages))
        for message in piece.messages:
            self._forget(message.id, kept=True)
        self._turn_is_due.set()
        return True

    def _give_back(self, messages: list[Message[Any]]) -> None:
        self._outcomes += [Settlement.release(message.claim) for message in messages]  # type: ignore[arg-type]
        self._decided.update(message.id for message in messages)

    def _drop(self, messages: Any) -> None:
        """The lease was lost: whatever came of these is another worker's now."""
        for message in messages:
            _log.warning("%s lease lost, outcome dropped: message_id=%s", self._where, message.message_id)
            self._forget(message.id, kept=False)
        self._turn_is_due.set()

    # -- leases --------------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        """At half of the lease, renew everything in hand in one call."""
        while True:
            await asyncio.sleep(self.box.work.lease.total_seconds() / 2)
            if self._in_hand:
                try:
                    await self._renew()
                except Exception:  # noqa: BLE001 - the next round may succeed; otherwise the leases end
                    _log.warning("%s leases could not be renewed", self._where, exc_info=True)

    async def _renew(self) -> None:
        held = [pair for id_, pair in self._in_hand.items() if id_ not in self._decided]
        kept = await self._store.renew(self.box, [claim for claim, _ in held], self.box.work.lease)
        for (claim, lease), still in zip(held, kept, strict=True):
            if not still and claim.id in self._in_hand and claim.id not in self._decided:
                lease.lost = True
                _log.warning("%s lease lost while handling: id=%d", self._where, claim.id)

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim no more; give back what was not begun. `run` ends when the rest is done."""
        self._stopping = True
        self._told_to_stop.set()
        not_begun = [message for line in self._lines for piece in line for message in piece.messages]
        self._lines.clear()
        self._give_back(not_begun)
        self._turn_is_due.set()

    async def release_all(self) -> None:
        """The end of patience: give back whatever is still in hand, uncounted."""
        left = [Settlement.release(claim) for id_, (claim, _) in self._in_hand.items() if id_ not in self._decided]
        outcomes = self._outcomes + left
        self._outcomes, self._in_hand, self._decided = [], {}, set()
        if outcomes:
            await self._store.settle(self.box, outcomes)


class _RollBack(Exception):
    """Not an error: it ends a transaction."""
