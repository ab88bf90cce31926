"""Log records about the messages of one box: one for each event."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from postroom._boxes.handlers import Handler
from postroom._kernel import texts
from postroom._kernel.decide import Outcome
from postroom._kernel.message import AnyMessage
from postroom._kernel.policy import Box
from postroom._kernel.settlement import Settlement
from postroom._kernel.texts import NO_REASON, ErrorTexts, escape, fate
from postroom._runtime.fault import Fault
from postroom.errors import Undecodable


def name(message: AnyMessage) -> str:
    """Returns the message as log records name it."""
    return texts.name(message.topic, message.source, message.message_id)


class MessageLog:
    """Writes the records. Texts of users are escaped; error texts are redacted, too."""

    def __init__(self, box: Box, where: str, errors: ErrorTexts) -> None:
        self._box = box
        self._where = where
        self._errors = errors

    def settled(self, message: AnyMessage, handler: Handler | None, outcome: Outcome, settlement: Settlement) -> None:
        """A message was not handled with success. `settlement` has the redacted error."""
        attempt = f"attempt {message.attempt + 1} of {self._box.delivery.max_attempts}"
        what = f"{self._where} {name(message)} handler={handler_name(handler)} {attempt}"
        error = _to_trace(outcome)
        if settlement.verdict == "release":
            level = logging.WARNING if isinstance(outcome, Fault) else logging.INFO
            reason = self._errors.for_log(outcome.reason or NO_REASON)
            text = f"is not counted: {reason}; next attempt {_moment(settlement.delay)}"
        elif settlement.verdict == "retry":
            level = logging.WARNING
            error_text = escape(settlement.error or NO_REASON)
            text = f"{_end(outcome)}: {error_text}; next attempt {_moment(settlement.delay)}"
        else:
            level = logging.ERROR
            text = f"{_end(outcome)}: {escape(settlement.error or NO_REASON)}; {fate(self._box)}"
        self._errors.log(level, "%s %s", what, text, error=error)

    def batch_failed(self, handler: Handler | None, messages: Sequence[AnyMessage], fault: Fault) -> None:
        """A handler raised on a batch."""
        self._errors.log(
            logging.WARNING,
            "%s topic=%s handler=%s failed on a batch of %d: %s; each message is handled alone now",
            self._where,
            escape(messages[0].topic),
            handler_name(handler),
            len(messages),
            self._errors.for_log(fault.reason or NO_REASON),
            error=fault.error,
        )

    def lease_lost(self, message: AnyMessage, outcome: Outcome | None) -> None:
        """The lease of a message was lost, so its outcome is not stored."""
        result = ""
        if outcome is not None and outcome.result != "success":
            result = f" ({outcome.result}: {self._errors.for_log(outcome.reason or NO_REASON)})"
        error = _to_trace(outcome)
        self._errors.log(
            logging.WARNING, "%s lease lost, outcome dropped%s: %s", self._where, result, name(message), error=error
        )


def _to_trace(outcome: Outcome | None) -> BaseException | None:
    """Returns the exception whose traceback is logged. That of an undecodable payload shows only our own code."""
    error = outcome.error if isinstance(outcome, Fault) else None
    return None if isinstance(error, Undecodable) else error


def _end(outcome: Outcome) -> str:
    if isinstance(outcome, Fault) and not outcome.ran:
        return "could not run"
    return "failed" if outcome.result == "failed" else "ended as dead"


def _moment(delay: timedelta | None) -> str:
    """Returns when a delay ends, by the clock of this process, which also writes the times of the log."""
    if not delay:
        return "at once"
    return f"at {(datetime.now(UTC) + delay).isoformat(timespec='seconds')}"


def handler_name(handler: Handler | None) -> str:
    if handler is None:
        return "none"
    function = handler.function
    return escape(str(getattr(function, "__qualname__", None) or type(function).__qualname__))
