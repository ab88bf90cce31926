"""The pump: claims, dispatches and settles for one box of one store (docs/decisions/0006)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from postroom._faces.check import error_text
from postroom._faces.handlers import Handler, Handlers
from postroom._kernel.decide import Outcome, decide
from postroom._kernel.ids import OwnerToken
from postroom._kernel.message import Claim, Lease, Message
from postroom._kernel.observer import Event
from postroom._kernel.policy import Box, is_suspect
from postroom._kernel.queries import Ask
from postroom._kernel.scope import handling
from postroom._kernel.settlement import Settlement
from postroom._kernel.texts import escape
from postroom._runtime.again import ClaimedAgain, Wait
from postroom._runtime.execute import Executor
from postroom._runtime.fault import Fault
from postroom._runtime.pace import Begun, Pace, Rest
from postroom._runtime.plan import Backlog, Line, Piece, plan
from postroom._runtime.report import Report, name
from postroom._runtime.transacted import RollBack, fault_of, first_error, refused
from postroom.errors import Undecodable

_log = logging.getLogger("postroom")

SLICE = 0.005
"""Seconds that handlers which never wait may keep the loop to themselves."""
TURNS = 2
"""Turns that may be under way together, where the store can: it does one while we read what the other has brought."""
STUBBORN = 5.0
"""Seconds that a cancelled handler may take to end."""
REFUSALS = 3
"""Times that a store may refuse outcomes together before they go one by one."""
ROLLED_BACK = Outcome.RETRY.because("rolled back, since another message of its batch did not succeed")
UNSTORABLE = "the outcome of its handler could not be stored"


class Pump:
    """Turns the waiting messages of a box into handled ones."""

    def __init__(self, store: Any, box: Box, handlers: Handlers, *, topics: frozenset[str] | None = None) -> None:
        self.box = box
        self.owner: UUID = OwnerToken.new()
        self._store = store
        self._handlers = handlers
        self._topics = topics
        self.where = escape(f"store={store.name} box={box.key}")
        self._report = Report(box, self.where, store.errors)
        self._executor = Executor(box, self.where, self._tell, store.is_heard)
        self._most = 2 * box.work.batch_size
        self._enough = max(box.work.batch_size // 2, 1)
        """Messages that may wait for a handler which takes no more at a time."""
        self._in_hand: dict[int, Message[Any]] = {}
        self._lines = Backlog()
        self._again = ClaimedAgain()
        self._outcomes: list[Settlement] = []
        self._on_their_way: list[list[Settlement]] = []
        """What the turns under way are handing in."""
        self._suspect: int | None = None
        """The suspect that is in hand, if there is one: nothing else is claimed until it is settled."""
        self._handling: set[int] = set()
        """What handlers have at this moment."""
        self._busy: Counter[Handler | None] = Counter()
        self._left_out: frozenset[str] = frozenset()
        """Topics that the last claim did not ask for, because their handlers had enough."""
        self._doubtful_from = math.inf
        """From when on a lease of what is in hand is in its second half."""
        self._to_hand_in_alone = 0
        """Outcomes that go one by one, after the store has refused them together."""
        self._refused_together = 0
        self._work_is_here = asyncio.Event()
        self._turn_is_due = asyncio.Event()
        self._stopping = False
        self._draining = False
        self.handled = 0
        """Messages that were claimed so far."""
        self.errors: dict[int, BaseException] = {}
        """While it drains: the last error that a handler raised, by message."""
        self.last_error: str | None = None
        """What the store raised last, if its last turn failed."""
        self._pace = Pace(*(pause.total_seconds() for pause in (*box.work.idle, box.work.read_delay)))
        self._rest = Rest()

    # -- the turn ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`; then until nothing is in hand."""
        await self.release_all()  # where an earlier run has failed
        self._executor.closing, self._executor.runner = False, asyncio.current_task()
        count = TURNS if self._store.features.concurrent else 1
        turns = [asyncio.create_task(self._take_turns()) for _ in range(count)]
        helpers = [asyncio.create_task(self._work()) for _ in range(self.box.work.concurrency)]
        if self.box.work.renew:
            helpers.append(asyncio.create_task(self._keep_leases()))
        tasks = [*turns, *helpers]
        try:
            await _until_all_end(turns, helpers)
        finally:
            self._executor.closing = True
            for task in tasks:
                task.cancel()
            _, stubborn = await asyncio.wait(tasks, timeout=STUBBORN)
            if stubborn:
                _log.error("%s %d handlers ignore that they were cancelled; left behind", self.where, len(stubborn))

    async def drain(self) -> int:
        """Until nothing more can be claimed now; answers how many messages were."""
        self._draining = True
        try:
            await self.run()
        finally:
            await self.release_all()
        return self.handled

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    @property
    def threads(self) -> int:
        """Threads in which handlers run that were cancelled."""
        return self._executor.threads

    @property
    def is_overdue(self) -> bool:
        """Whether a lease of what is in hand may have passed, and a late success could still count."""
        now = _now()
        return any(message.lease.ends <= now for message in self._in_hand.values())  # type: ignore[union-attr]

    def wake(self) -> None:
        """A hint: there may be something to claim."""
        self._pace.hint()
        self._turn_is_due.set()

    def expect(self, seconds: float) -> None:
        """A hint: there will be something to claim then."""
        if self._pace.expect(_now() + seconds):
            self._turn_is_due.set()  # whoever sleeps does not know of it yet

    async def _take_turns(self) -> None:
        while not self._executor.closing and not (self._stopping and not self._in_hand):
            if self._is_turn_due():
                await self._turn()
                self._turn_is_due.set()  # the end of one may be what another waits for
            else:
                await self._wait_for_a_turn()

    def _is_turn_due(self) -> bool:
        """Outcomes are handed in together, by one turn at a time; another joins it only for a whole batch."""
        if _now() < self._rest.until:
            return False
        if self._asks_for():
            return True
        if not any(self._on_their_way):
            return bool(self._outcomes)
        return len(self._outcomes) >= self.box.work.batch_size and not self.box.order.fifo

    async def _wait_for_a_turn(self) -> None:
        self._turn_is_due.clear()
        at = self._pace.next if self._has_room() else math.inf
        if _now() < self._rest.until:
            at = self._rest.until
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if at == math.inf else at):
                await self._turn_is_due.wait()

    def _asks_for(self) -> int:
        """How many messages to claim now: none, or half of what fits."""
        self._look_at_what_was_left_out()
        if self._to_hand_in_alone or not self._pace.is_time(_now()):
            return 0
        return self.box.work.batch_size if self._has_room() else 0

    def _has_room(self) -> bool:
        """For another claim, beside what those under way may bring, and what stays when all outcomes are settled."""
        if self._stopping or self._suspect is not None or (self._pace.under_way and not self._pace.is_plenty):
            return False
        waiting = self._waiting_for_handlers()
        if self._topics_to_claim(self._full_topics(waiting)) == frozenset():
            return False
        coming = (self._pace.under_way + 1) * self.box.work.batch_size
        # What waits for a handler that takes no more keeps nothing else from being claimed.
        in_hand = len(self._in_hand) - sum(waiting.values())
        left = in_hand - len(self._outcomes) - sum(map(len, self._on_their_way))
        # What is handled and not settled would be handled again after a crash: while a turn hangs, it must not grow.
        return left + coming <= self._most and in_hand + coming <= TURNS * self._most

    def _waiting_for_handlers(self) -> dict[Handler, int]:
        """Messages in hand that cannot be begun, because their handler has as many as it may take at a time."""
        return {handler: count for handler, count in self._lines.waiting.items() if self._is_full(handler)}

    def _full_topics(self, waiting: dict[Handler, int]) -> frozenset[str]:
        """Those whose handler has enough waiting for it: a worker must not hold what it cannot begin."""
        return frozenset(handler.topic for handler, count in waiting.items() if count >= self._enough)

    def _topics_to_claim(self, full: frozenset[str]) -> frozenset[str] | None:
        return frozenset(handler.topic for handler in self._handlers) - full if full else self._topics

    def _look_at_what_was_left_out(self) -> None:
        """A claim that left topics out proves nothing about them: once one is no longer full, it is time to claim."""
        if self._left_out:
            still_full = self._left_out & self._full_topics(self._waiting_for_handlers())
            if still_full != self._left_out:
                self._left_out = still_full
                self._pace.hint()

    async def _turn(self) -> None:
        limit = self._asks_for()
        begun = self._pace.begin() if limit else None
        outcomes = self._outcomes_to_hand_in()
        self._on_their_way.append(outcomes)
        started = _now()
        try:
            settled, messages = await self._exchange(outcomes, limit)
        except BaseException as error:
            self._outcomes[:0] = outcomes  # a turn may fail, or be cancelled: the next one hands them in
            if self._draining or not isinstance(error, Exception):
                raise
            self._take_a_rest(error)
            self._doubt(outcomes, limit, error)
            return
        finally:
            self._on_their_way.remove(outcomes)
            if begun is not None:
                self._pace.end()
            if self._suspect is not None:
                self._work_is_here.set()  # it waits until no claim is under way
        if self.last_error is not None:
            _log.info("%s the store works again", self.where)
        self.last_error = None
        self._rest.end()
        self._refused_together = 0
        self._to_hand_in_alone = max(self._to_hand_in_alone - len(outcomes), 0)
        self._settled(outcomes, settled)
        if begun is not None:
            self._receive(begun, messages, limit, started)
        elif any(map(self._frees, outcomes)):
            self.wake()  # only now: a claim beside this turn may have come too early

    def _outcomes_to_hand_in(self) -> list[Settlement]:
        """All that there are; but the outcomes of a line must not overtake each other, so some may have to wait."""
        outcomes, self._outcomes = self._outcomes, []
        if self._to_hand_in_alone:
            outcomes, self._outcomes = outcomes[:1], outcomes[1:]
        if not (self.box.order.fifo and any(self._on_their_way)):
            return outcomes
        leaving = {self._line_of(settlement) for settlement in chain(*self._on_their_way)} - {None}
        first: list[Settlement] = []
        later: list[Settlement] = []
        for settlement in outcomes:
            (later if self._line_of(settlement) in leaving else first).append(settlement)
        self._outcomes[:0] = later
        return first

    def _frees(self, settlement: Settlement) -> bool:
        """Whether there is something to claim because of it: itself, or the next of its group."""
        return self.box.order.fifo or (settlement.verdict in {"retry", "release"} and not settlement.delay)

    def _line_of(self, settlement: Settlement) -> str | None:
        message = self._in_hand.get(settlement.target.id)  # type: ignore[union-attr]
        return None if message is None else message.group

    async def _exchange(self, outcomes: list[Settlement], limit: int) -> tuple[list[bool], list[Message[Any]]]:
        if not limit:
            return await self._store.settle(self.box, outcomes), []
        self._left_out = self._full_topics(self._waiting_for_handlers())
        topics = self._topics_to_claim(self._left_out)
        # Of two claims under way, one may bring a suspect.
        suspects = self._pace.under_way == 1
        ask = Ask(self.owner, self.box.work.lease, limit, topics, self._doubtful(_now()), suspects)
        return await self._store.turn(self.box, outcomes, ask)

    def _settled(self, outcomes: list[Settlement], settled: list[bool]) -> None:
        in_hand, suspected = self._in_hand, self._suspect is not None
        for settlement, kept in zip(outcomes, settled, strict=True):
            claim: Claim = settlement.target  # type: ignore[assignment]
            if kept and not suspected:  # nearly all are so: what `_forget` does, without the call
                message = in_hand.get(claim.id)
                if message is not None and message.lease.claim.fence == claim.fence:  # type: ignore[union-attr]
                    del in_hand[claim.id]
            elif not kept and (newer := self._newer_claim(settlement)) is not None:
                self._hand_in(settlement._replace(target=newer))
                continue
            else:
                self._forget(claim, kept=kept)
            if settlement.delay and kept:
                self.expect(settlement.delay.total_seconds())
        if self._again:
            for settlement, kept in zip(outcomes, settled, strict=True):
                wait = self._again.learn(settlement.target.id, stored=kept)  # type: ignore[union-attr]
                if wait is not None:
                    self._resume(wait)
        if self._draining and not in_hand:
            self.wake()

    def _resume(self, wait: Wait) -> None:
        """Messages that were claimed again are new work, now that their earlier outcomes are stored."""
        for message in wait.accepted:
            earlier = self._in_hand.get(message.id)
            if earlier is not None and earlier.lease is not None:
                handler = self._handlers.get(message.topic)
                payload = message.payload if handler is None else handler.decode(message.payload, message.format)
                self._in_hand[message.id] = message.held(payload, earlier.lease)
        waiting = (self._in_hand.get(message.id) for message in (*wait.accepted, *wait.behind))
        ready = [message for message in waiting if message is not None]
        if wait.refused and self.box.order.fifo:
            self._give_back(ready)  # the message before them has another outcome to come
        else:
            self._begin(ready)

    def _begin(self, held: list[Message[Any]]) -> None:
        """Hand messages to the handlers."""
        self._lines.extend(plan(held, self._handlers, fifo=self.box.order.fifo, concurrency=self.box.work.concurrency))
        self._work_is_here.set()
        if self._stopping:
            self.stop()  # told while the claim was under way

    def _newer_claim(self, settlement: Settlement) -> Claim | None:
        """The claim under which its message is in hand by now, if this worker has claimed it again meanwhile."""
        message = self._in_hand.get(settlement.target.id)  # type: ignore[union-attr]
        return None if message is None or _proof(message) == settlement.target else _proof(message)

    def _doubtful(self, now: float) -> tuple[int, ...]:
        """What is in hand under leases that may have passed: a worker takes no message from itself."""
        if now < self._doubtful_from:
            return ()
        half = self.box.work.lease.total_seconds() / 2
        ends = {id_: message.lease.ends - half for id_, message in self._in_hand.items()}  # type: ignore[union-attr]
        self._doubtful_from = min((end for end in ends.values() if end > now), default=math.inf)
        doubtful = tuple(id_ for id_, end in ends.items() if end <= now)
        if doubtful:
            self._doubtful_from = now
        return doubtful

    def _doubt(self, outcomes: list[Settlement], limit: int, error: Exception) -> None:
        """After a failed turn: an outcome that cannot be stored must not keep others from being stored. Unless the
        error passes by itself, outcomes go one by one after a while; one that is refused by itself is made plain."""
        if not outcomes or self._store.passes(error):
            return
        if limit or len(outcomes) > 1:
            self._refused_together += 1
            if self._refused_together >= REFUSALS:
                self._to_hand_in_alone = len(self._outcomes)
            return
        plain = _plain(outcomes[0], self.box.work.idle[1])
        if plain != outcomes[0]:
            self._outcomes[0] = plain
        else:  # the others go first
            self._outcomes.append(self._outcomes.pop(0))
            self._to_hand_in_alone -= bool(self._to_hand_in_alone)

    def _take_a_rest(self, error: Exception) -> None:
        """After an error of the store: longer each time, and cut short only by `stop`."""
        if _now() < self._rest.until:
            return  # the other turn has told it
        self.last_error = type(error).__name__
        passes = self._store.passes(error)  # an outage needs no traceback; a fault of ours, or of a plan, does
        self._store.errors.log(
            logging.ERROR,
            "%s the store failed (%s); trying again in %.1f s",
            self.where,
            self._store.errors.of(error),
            self._rest.seconds,
            error=None if passes else error,
        )
        self._rest.begin(_now())

    def _receive(self, begun: Begun, messages: list[Message[Any]], limit: int, started: float) -> None:
        # Suspects come alone: where there is one, there may be more.
        more = any(message.lost_leases for message in messages)
        self._pace.learn(begun, len(messages), limit, _now(), polls=not self._draining, more=more)
        if not messages:
            if self._draining:  # what is in hand, or on its way here, may free a group, or be ready again
                self._stopping = not self._in_hand and not self._pace.under_way
            return
        self.handled += len(messages)
        ends = started + self.box.work.lease.total_seconds()
        self._doubtful_from = min(self._doubtful_from, (started + ends) / 2)
        held: list[Message[Any]] = []
        again: list[Message[Any]] = []
        in_hand, handler_of = self._in_hand, self._handlers.get
        for message in messages:
            claim: Claim = message.claim  # type: ignore[assignment]
            id_ = message.id
            earlier = in_hand.get(id_)
            if earlier is None:
                handler, payload = handler_of(message.topic), message.payload
                if handler is not None:
                    payload = handler.decode(payload, message.format)
                taken = in_hand[id_] = message.held(payload, Lease(claim, ends))
                held.append(taken)
                if message.lost_leases and self._is_suspect(message):
                    self._suspect = id_
            else:  # its lease passed, and nobody here noticed before: its handler goes on under the new one
                lease: Lease = earlier.lease  # type: ignore[assignment]
                lease.claim, lease.ends, lease.lost = claim, ends, False
                if self._is_settled(id_):
                    again.append(message)  # or its outcome was stored, and this is new work
        self._begin(self._again.put_off(again, held) if again else held)

    def _forget(self, claim: Claim, *, kept: bool) -> None:
        message = self._in_hand.get(claim.id)
        if message is None or _proof(message).fence != claim.fence:
            return
        del self._in_hand[claim.id]
        if self._suspect is not None:
            self._suspect = None if claim.id == self._suspect else self._suspect
            self._work_is_here.set()  # it may begin once nothing else is in hand
        message.lease.lost |= not kept  # type: ignore[union-attr]
        if self._draining and not self._in_hand:
            self.wake()

    # -- the work ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One of `concurrency` workers. A handler may cancel the task in which it runs, at once or later: that is not
        our cancellation, and the worker goes on."""
        while not self._executor.closing:
            try:
                await self._work_on()
            except asyncio.CancelledError:
                if self._executor.is_ending:
                    raise
                _log.warning("%s a handler has cancelled the task in which it ran; the worker goes on", self.where)
                task = asyncio.current_task()
                while task is not None and task.uncancel():
                    pass

    async def _work_on(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._executor.closing:  # a handler may have kept our cancellation to itself
            line = self._lines.next(self._is_free)
            if line is None:
                self._work_is_here.clear()
                await self._work_is_here.wait()
                began = loop.time()
                continue
            await self._do_first(line)
            if loop.time() - began > SLICE:
                await asyncio.sleep(0)
                began = loop.time()

    def _is_free(self, piece: Piece) -> bool:
        """Its handler may take more, and has none of its messages under an earlier lease that was lost."""
        if piece.handler is not None and self._is_full(piece.handler):
            return False
        if self._suspect is not None and piece.messages[0].id == self._suspect:
            return len(self._in_hand) == 1 and not self._pace.under_way
        return not self._handling or self._handling.isdisjoint(message.id for message in piece.messages)

    def _is_suspect(self, message: Message[Any]) -> bool:
        """It may be what kills its workers. It is handled while nothing else is in hand, and takes nothing with it."""
        return is_suspect(self.box, deliveries=message.deliveries - 1, lost_leases=message.lost_leases)

    def _is_full(self, handler: Handler) -> bool:
        return handler.concurrency is not None and self._busy[handler] >= handler.concurrency

    async def _do_first(self, line: Line) -> None:
        """The first piece of a line. What follows is next, or is given back if it did not succeed or we must stop."""
        piece = line.popleft()
        try:
            going_well = await self._do(piece)
        except BaseException:  # a cancellation that is not ours, or a fault: nothing may stay in hand for ever
            settled = {settlement.target for settlement in chain(self._outcomes, *self._on_their_way)}
            for left in (piece, *line):
                self._give_back(m for m in left.messages if _proof(m) not in settled and self._in_hand.get(m.id) is m)
            self._turn_is_due.set()
            raise
        if line and going_well and not self._stopping:
            self._lines.go_on_with(line)
            return
        for piece in line:
            self._give_back(piece.messages)
        if self.box.order.fifo:
            self.wake()  # the group is free once this is settled
        self._turn_is_due.set()

    async def _do(self, piece: Piece) -> bool:
        """Answers whether every message succeeded."""
        handler = piece.handler
        one_by_one = handler is not None and handler.is_plain
        if not one_by_one and any(message.lease_lost for message in piece.messages):
            self._drop(message for message in piece.messages if message.lease_lost)
            piece = piece._replace(messages=[message for message in piece.messages if not message.lease_lost])
            if piece.ordered:
                self._give_back(piece.messages)
                return False
            if not piece.messages:
                return True
        ids = [message.id for message in piece.messages]
        self._handling.update(ids)
        self._busy[handler] += 1
        if handler is not None and self._lines.waiting[handler] >= self._enough:
            self._turn_is_due.set()  # what waits for it takes no room any more
        try:
            if handler is not None and one_by_one:
                return await self._do_each(handler, piece.messages, ordered=piece.ordered)
            well = await self._do_together(piece)
            return await self._do_one_at_a_time(piece, well) if isinstance(well, Fault) else well
        finally:
            self._busy[handler] -= 1
            self._handling.difference_update(ids)
            if self._lines:
                self._work_is_here.set()  # some may have waited for this

    async def _do_each(  # noqa: C901, PLR0912 - in one function: every further coroutine costs each message a tenth
        self, handler: Handler, messages: list[Message[Any]], *, ordered: bool
    ) -> bool:
        """One after the other; each outcome is handed in at once. In a group, what follows a failure is given back."""
        loop, done, executor = asyncio.get_running_loop(), Settlement.done, self._executor
        began = loop.time()
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        direct = executor.direct(handler)
        ended: str | None = None
        for index, message in enumerate(messages):
            if ended is not None and message.group == ended:
                continue
            # Before a message, not after it: no exchange may run between a failure and the release of those behind it.
            if loop.time() - began > SLICE:
                await asyncio.sleep(0)
                began = loop.time()
            if self._stopping:
                self._give_back(messages[index:])
                return False
            lease: Lease = message.lease  # type: ignore[assignment]
            outcome = Outcome.SUCCESS
            if lease.lost:
                pass
            elif direct is None or type(message.payload) is Undecodable:
                outcome = await executor.run_one(handler, message)
            else:
                try:
                    answer = await direct(message)
                    if task.cancelling():
                        await executor.end_cancellation()
                except BaseException as error:  # noqa: BLE001 - `failed` raises what is not the handler's fault
                    outcome = await executor.failed(error)
                else:
                    if answer is not None:
                        outcome = executor.outcome_of(answer)
            well = False
            if lease.lost:
                self._drop([message], outcome)
            elif outcome.result == "success":
                well = True
                self._outcomes.append(done(lease.claim))
                self._turn_is_due.set()
            else:
                self._hand_in(self._settlement(message, outcome))
            if ordered and not well:
                ended = message.group
                self._give_back(_behind(messages, index))
        return ended is None

    async def _do_together(self, piece: Piece) -> bool | Fault:
        """Returns whether every message succeeded; or a fault, if the handler raised on a batch. Then nothing is
        settled, and each message must be handled alone."""
        if piece.handler is not None and piece.handler.transactional:
            return await self._do_in_transaction(piece)
        outcomes = await self._executor.run(piece)
        return outcomes if isinstance(outcomes, Fault) else self._settle(piece, outcomes)

    async def _do_one_at_a_time(self, piece: Piece, fault: Fault) -> bool:
        """After a batch that raised: one bad message must not use up the attempts of the others (decision 0011)."""
        self._report.batch(piece.handler, piece.messages, fault)
        well = True
        for index, message in enumerate(piece.messages):
            if well or not piece.ordered:  # after a failure, what is behind it is given back before any exchange
                await asyncio.sleep(0)  # handlers that never wait must not block the event loop
            if self._stopping or (piece.ordered and not well):
                self._give_back(piece.messages[index:])
                return False
            if message.lease_lost:
                self._drop([message])
                well = False
                continue
            well = (await self._do_together(piece._replace(messages=[message]))) is True and well
        return well

    def _settle(self, piece: Piece, outcomes: list[Outcome]) -> bool:
        well = True
        for index, (message, outcome) in enumerate(zip(piece.messages, outcomes, strict=True)):
            lease: Lease = message.lease  # type: ignore[assignment]
            if lease.lost:
                self._drop([message], outcome)
                well = False
                continue
            if piece.ordered and not well:
                self._give_back(piece.messages[index:])
                return False
            if outcome.result == "success":
                self._outcomes.append(Settlement.done(lease.claim))
            else:
                well = False
                self._hand_in(self._settlement(message, outcome))
        self._turn_is_due.set()
        return well

    def _settlement(self, message: Message[Any], outcome: Outcome) -> Settlement:
        settlement = decide(outcome, _proof(message), message.attempt, self.box.delivery)
        if self._draining and isinstance(outcome, Fault) and outcome.error is not None and outcome.result != "retry":
            self.errors[message.id] = outcome.error
        if settlement.error is not None:
            settlement = settlement._replace(error=error_text("error", settlement.error, self._store.errors.redact))
        if outcome.result == "dead" and isinstance(outcome, Fault) and not outcome.ran:
            settlement = settlement._replace(counts=False)
        self._report.settled(message, self._handlers.get(message.topic), outcome, settlement)
        return settlement

    def _hand_in(self, settlement: Settlement) -> None:
        self._outcomes.append(settlement)
        if self._frees(settlement):
            self.wake()  # the turn that takes it can claim, too
        self._turn_is_due.set()

    def _give_back(self, messages: Iterable[Message[Any]]) -> None:
        for message in messages:
            self._hand_in(Settlement.release(_proof(message)))

    async def _do_in_transaction(self, piece: Piece) -> bool | Fault:
        """The handler's writes and the completion commit together, or not at all. Returns what `_do_together` does."""
        outcomes: list[Outcome] | Fault = []
        kept: list[bool] = []
        begun = False
        try:
            async with self._store.transaction() as tx:
                begun = True
                with handling.opened(self._store) as scope:
                    outcomes = await self._executor.run(piece, tx)
                if scope.refusal is not None:
                    outcomes = refused(scope.refusal, outcomes)
                if isinstance(outcomes, Fault) or any(outcome.result != "success" for outcome in outcomes):
                    raise RollBack from first_error(outcomes)  # noqa: TRY301 - this is how a transaction is ended
                done = [Settlement.done(_proof(message)) for message in piece.messages]
                kept = await self._store.settle(self.box, done, tx=tx)
                if not all(kept):
                    raise RollBack  # noqa: TRY301
        except RollBack:
            return outcomes if isinstance(outcomes, Fault) else self._undo(piece, outcomes, kept)
        except Exception as error:  # noqa: BLE001 - the transaction's trouble counts as the handler's
            pause, most = self.box.work.idle[0], self.box.delivery.max_attempts
            if not begun:  # one that could not even begin was not the message's fault
                reason = f"its transaction could not begin: {type(error).__name__}"
                fault = Fault("retry", pause, reason, error, ran=False)
            else:
                free = all(message.deliveries - message.attempt <= most for message in piece.messages)
                fault = fault_of(error, passes=self._store.passes(error), pause=pause if free else None)
                if len(piece.messages) > 1 and fault.result != "retry":
                    return fault
            return self._settle(piece, [fault] * len(piece.messages))
        for message in piece.messages:
            self._forget(_proof(message), kept=True)
        return True

    def _undo(self, piece: Piece, outcomes: list[Outcome], kept: list[bool]) -> bool:
        """What succeeded was rolled back with the rest: it is given back, uncounted."""
        if kept:
            self._drop(message for message, still in zip(piece.messages, kept, strict=True) if not still)
            self._give_back(message for message, still in zip(piece.messages, kept, strict=True) if still)
            return False
        first = next(index for index, outcome in enumerate(outcomes) if outcome.result != "success")
        self._give_back(piece.messages[:first])
        undone = [ROLLED_BACK if outcome.result == "success" else outcome for outcome in outcomes[first:]]
        return self._settle(piece._replace(messages=piece.messages[first:]), undone)

    def _drop(self, messages: Iterable[Message[Any]], outcome: Outcome | None = None) -> None:
        """The lease was lost: whatever came of these is another worker's now."""
        dropped = list(messages)
        for message in dropped:
            self._report.lost(message, outcome)
            self._forget(_proof(message), kept=False)
        self._tell("lost", dropped, None, 0.0)
        self._turn_is_due.set()

    def _tell(self, verb: str, given: Any, result: Any, seconds: float, error: BaseException | None = None) -> None:
        if self._store.is_heard(verb):
            self._store.tell(Event(verb, self._store.name, self.box, given, result, error, seconds))

    # -- leases --------------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        """At half of the lease, or the part that was asked for, renew everything in hand in one call."""
        while not self._executor.closing:
            await asyncio.sleep(self.box.work.lease.total_seconds() * self.box.work.renew)
            if self._in_hand:
                try:
                    await self._renew()
                except Exception as error:  # noqa: BLE001 - the next round may succeed; otherwise the leases end
                    self._store.errors.log(logging.WARNING, "%s leases could not be renewed", self.where, error=error)

    async def _renew(self) -> None:
        held = list(self._in_hand.values())
        started, lease = _now(), self.box.work.lease
        claims = [_proof(message) for message in held]
        kept = await self._store.renew(self.box, claims, lease)
        self._doubtful_from = 0.0
        for message, claim, still in zip(held, claims, kept, strict=True):
            if still:
                message.lease.ends = started + lease.total_seconds()  # type: ignore[union-attr]
            elif _proof(message) is not claim:
                pass  # it was claimed here again meanwhile
            elif self._in_hand.get(message.id) is message and not self._is_settled(message.id):
                message.lease.lost = True  # type: ignore[union-attr]
                _log.warning("%s lease lost while handling %s", self.where, name(message))

    def _is_settled(self, id_: int) -> bool:
        """Its outcome is on its way: that the claim no longer holds is as it should be."""
        leaving = chain(self._outcomes, *self._on_their_way)
        return any(settlement.target.id == id_ for settlement in leaving)  # type: ignore[union-attr]

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim no more; give back what was not begun. `run` ends when the rest is done."""
        self._stopping, self._rest.until = True, 0.0
        for piece in chain(*self._lines.clear()):
            self._give_back(piece.messages)
        self._turn_is_due.set()

    async def release_all(self) -> None:
        """Give back whatever is still in hand, uncounted: at the end of patience, or after a failure."""
        self._lines.clear()
        self._again.clear()
        settled = {settlement.target.id for settlement in self._outcomes}  # type: ignore[union-attr]
        self._give_back(message for id_, message in self._in_hand.items() if id_ not in settled)
        outcomes, self._outcomes, self._in_hand, self._suspect = self._outcomes, [], {}, None
        if outcomes:
            await self._store.settle(self.box, outcomes)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _proof(message: Message[Any]) -> Claim:
    """The claim under which a message is in hand now."""
    return message.lease.claim  # type: ignore[union-attr]


async def _until_all_end(tasks: list[asyncio.Task[None]], helpers: list[asyncio.Task[None]]) -> None:
    """Until all tasks have ended; or until one of them has failed, or a helper has ended before they have."""
    running: set[asyncio.Task[None]] = {*tasks, *helpers}
    while any(not task.done() for task in tasks):
        ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # raises what it has raised
            if task in helpers:
                raise RuntimeError("a part of the worker has ended by itself")


def _behind(messages: list[Message[Any]], index: int) -> Iterator[Message[Any]]:
    """Who follows one in the row of its group."""
    for message in messages[index + 1 :]:
        if message.group != messages[index].group:
            return
        yield message


def _plain(settlement: Settlement, delay: timedelta) -> Settlement:
    """An outcome of the same kind, without what its handler or a backoff has said about it."""
    if settlement.verdict == "dead":
        return Settlement.dead(settlement.target, error=UNSTORABLE, counts=settlement.counts)
    if settlement.verdict == "retry":
        return Settlement.retry(settlement.target, delay=delay, error=UNSTORABLE)
    return settlement
