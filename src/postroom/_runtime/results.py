"""Makes settlements from the outcomes of handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from postroom._boxes.check import error_text
from postroom._boxes.handlers import Handlers
from postroom._kernel.decide import Outcome, decide
from postroom._kernel.message import HeldMessage
from postroom._kernel.policy import Box
from postroom._kernel.settlement import ClaimSettlement
from postroom._kernel.texts import ErrorTexts
from postroom._runtime.fault import Fault
from postroom._runtime.in_hand import InHand
from postroom._runtime.message_log import MessageLog
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.plan import WorkUnit

Emit = Callable[..., None]


class Results:
    """Decides the settlement of handled messages, logs it, and adds it to the outcomes."""

    def __init__(
        self,
        box: Box,
        handlers: Handlers,
        in_hand: InHand,
        outcomes: Outcomes,
        log: MessageLog,
        errors: ErrorTexts,
        emit: Emit,
    ) -> None:
        self._box = box
        self._handlers = handlers
        self._in_hand = in_hand
        self._outcomes = outcomes
        self._log = log
        self._errors = errors
        self._emit = emit
        self.raised: dict[int, BaseException] | None = None
        """The last error that a handler raised, by message; None if errors are not collected."""

    def add(self, message: HeldMessage, outcome: Outcome) -> bool:
        """Adds the outcome of a message. Returns True if it succeeded and the worker still has its lease."""
        if message.lease.lost:
            self.drop([message], outcome)
            return False
        if outcome.result == "success":
            self._outcomes.waiting.append(ClaimSettlement.done(message.lease.claim))
            self._outcomes.exchange_due.set()
            return True
        self._outcomes.add(self._settlement(message, outcome))
        return False

    def add_all(self, unit: WorkUnit, outcomes: list[Outcome]) -> bool:
        """Adds the outcomes of a unit. Returns True if all messages succeeded.

        If the unit is ordered, the messages behind the first one that did not succeed are released.
        """
        succeeded = True
        for index, (message, outcome) in enumerate(zip(unit.messages, outcomes, strict=True)):
            if unit.ordered and not succeeded and not message.lease.lost:
                self._outcomes.release(unit.messages[index:])
                return False
            succeeded = self.add(message, outcome) and succeeded
        return succeeded

    def _settlement(self, message: HeldMessage, outcome: Outcome) -> ClaimSettlement:
        settlement = decide(outcome, message.lease.claim, message.attempt, self._box.delivery)
        fault = outcome if isinstance(outcome, Fault) else None
        if self.raised is not None and fault is not None and fault.error is not None and fault.result != "retry":
            self.raised[message.id] = fault.error
        if settlement.error is not None:
            settlement = settlement._replace(error=error_text("error", settlement.error, self._errors.redact))
        if fault is not None and fault.result == "dead" and not fault.ran:
            settlement = settlement._replace(counts=False)
        self._log.settled(message, self._handlers.get(message.topic), outcome, settlement)
        return settlement

    def drop(self, messages: Iterable[HeldMessage], outcome: Outcome | None = None) -> None:
        """Removes messages whose leases are lost from hand, and stores nothing: another worker may have them."""
        dropped = list(messages)
        for message in dropped:
            self._log.lease_lost(message, outcome)
            self._in_hand.remove(message.lease.claim, is_lost=True)
        self._emit("lost", dropped, None, 0.0)
        self._outcomes.exchange_due.set()
