"""Texts of users as they may be logged: names and ids are escaped, error texts are redacted, too."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterator

from postroom._kernel.decide import describe
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError

_log = logging.getLogger("postroom")

Redact = Callable[[str], str]
"""Returns an error text without the parts that must not be stored or logged."""

NO_REASON = "no reason given"
LEFT_OUT = "(left out: the redact function failed)"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def escape(text: str) -> str:
    r"""Returns the text with control characters written as `\n`, `\x1b` and so on: it cannot forge a line of a log."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def name(topic: str, source: str, message_id: str) -> str:
    """Returns a message as log records name it."""
    return f"topic={escape(topic)} source={escape(source)} message_id={escape(message_id)}"


def fate(box: Box) -> str:
    """Returns what a log record says of a message that died."""
    return "discarded" if box.retention.dead_letter == "discard" else "dead letter"


class ErrorTexts:
    """Error texts as they may be stored or logged. A room has one, with its redact function."""

    def __init__(self, redact: object = None) -> None:
        """Raises ArgumentTypeError if `redact` is neither None nor a plain function."""
        if redact is not None and (not callable(redact) or inspect.iscoroutinefunction(redact)):
            raise ArgumentTypeError("redact must be a plain function from an error text to a text that may be stored")
        self._redact: Callable[[str], object] | None = redact

    def redact(self, text: str) -> str:
        """Returns the text as it may be stored. If the redact function fails, the text is left out."""
        if self._redact is None:
            return text
        try:
            redacted = self._redact(text)
        except Exception as error:  # noqa: BLE001 - a function of the user may raise anything
            _log.error("the redact function raised %s; an error text was left out", type(error).__name__)
            return LEFT_OUT
        if not isinstance(redacted, str):
            _log.error("the redact function returned a %s; an error text was left out", type(redacted).__name__)
            return LEFT_OUT
        return redacted

    def for_log(self, text: str) -> str:
        return escape(self.redact(text))

    def of(self, error: BaseException) -> str:
        """Returns an error as one line for a log: its type and its text."""
        return self.for_log(describe(error))

    def log(self, level: int, message: str, *args: object, error: BaseException | None) -> None:
        """Writes a log record with the traceback of an error. If redaction or escaping changes a text in it, the record
        has a traceback with the changed text (`exc_text`), and not the exception itself (`exc_info`)."""
        if not _log.isEnabledFor(level):
            return
        if error is None or all(map(self._may_be_shown, _chain(error))):
            _log.log(level, message, *args, exc_info=error, stacklevel=2)
            return
        file, line, function, _ = _log.findCaller(stacklevel=2)
        record = _log.makeRecord(_log.name, level, file, line, message, args, None, function)
        record.exc_text = "".join(self._traceback(error, set())).rstrip("\n")
        _log.handle(record)

    def _may_be_shown(self, error: BaseException) -> bool:
        """Returns True if Python may print the error. Of a SyntaxError it prints the line, which may be a payload."""
        return not isinstance(error, SyntaxError) and all(self.for_log(text) == text for text in _texts(error))

    def _traceback(self, error: BaseException, seen: set[int]) -> Iterator[str]:
        """Yields the traceback as Python prints it, with the changed texts."""
        chain: list[tuple[BaseException, str]] = []
        each: BaseException | None = error
        while each is not None and id(each) not in seen:  # a loop: a chain may be longer than the stack
            seen.add(id(each))
            before, link = _before(each)
            chain.append((each, link))
            each = before
        for number, (each, link) in enumerate(reversed(chain)):
            if number:
                yield link
            yield from self._traceback_of_one(each, seen)

    def _traceback_of_one(self, error: BaseException, seen: set[int]) -> Iterator[str]:
        if error.__traceback__ is not None:
            yield "Traceback (most recent call last):\n"
            yield from traceback.format_tb(error.__traceback__)
        text, *notes = map(self.for_log, _texts(error))
        yield f"{_type_name(error)}: {text}\n" if text else f"{_type_name(error)}\n"
        yield from (f"{note}\n" for note in notes)
        if isinstance(error, BaseExceptionGroup):
            for number, each in enumerate(error.exceptions, 1):
                if id(each) not in seen:
                    yield f"---- exception {number} of the group ----\n"
                    yield from self._traceback(each, seen)


def _texts(error: BaseException) -> list[str]:
    """Returns the text of an error, then its notes. Classes of the user may raise in any of them."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "(its text could not be made)"
    try:
        notes = [str(note) for note in getattr(error, "__notes__", ())]
    except Exception:  # noqa: BLE001
        notes = []
    return [text, *notes]


def _before(error: BaseException) -> tuple[BaseException | None, str]:
    if error.__cause__ is not None:
        return error.__cause__, _CAUSE
    return (None, "") if error.__suppress_context__ else (error.__context__, _CONTEXT)


def _chain(error: BaseException) -> list[BaseException]:
    """Returns the error and all others that its traceback shows."""
    found: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        before, _ = _before(each)
        waiting += [before] if before is not None else []
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return list(found.values())


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return escape(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")
