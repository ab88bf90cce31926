"""Running a handler on a piece of work: decode, call, and make every answer an outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from postroom._faces.handlers import Handler
from postroom._kernel.decide import Outcome, describe
from postroom._kernel.message import Message
from postroom._kernel.policy import Box
from postroom._runtime.plan import Piece
from postroom.errors import Undecodable

_log = logging.getLogger("postroom")

MISSING_RESULT = Outcome.FAILED.because("the handler returned no result for this message")


class Executor:
    """Calls the handlers of one box."""

    def __init__(self, box: Box, store_name: str) -> None:
        self._box = box
        self._where = f"store={store_name} box={box.key}"

    async def run(self, piece: Piece, *extra: Any) -> list[Outcome]:
        """An outcome for each message of the piece. Only cancellation is raised."""
        if piece.handler is None:
            return self._unhandled(piece)
        handler = piece.handler
        messages: list[Message[Any]] = []
        outcomes: dict[int, Outcome] = {}
        for message in piece.messages:
            try:
                messages.append(handler.decode(message))
            except Undecodable as error:
                _log.error("%s %s: %s", self._where, _name(message), error)
                failed = Outcome.DEAD if self._box.work.on_undecodable == "dead" else Outcome.FAILED
                outcomes[message.id] = failed.because(describe(error))
        if messages:
            answers = await self._call(handler, messages, extra)
            outcomes.update(zip((message.id for message in messages), answers, strict=True))
        return [outcomes[message.id] for message in piece.messages]

    def _unhandled(self, piece: Piece) -> list[Outcome]:
        work = self._box.work
        for message in piece.messages:
            _log.warning("%s %s: no handler for its topic; %s", self._where, _name(message), work.on_unhandled)
        outcome = {
            "abandon": Outcome.FAILED,
            "release": Outcome.RETRY.after(work.idle[1]),
            "dead": Outcome.DEAD,
        }[work.on_unhandled]
        return [outcome.because("no handler for this topic")] * len(piece.messages)

    async def _call(self, handler: Handler, messages: list[Message[Any]], extra: Sequence[Any]) -> list[Outcome]:
        if _log.isEnabledFor(logging.INFO):
            for message in messages:
                _log.info("%s handling %s attempt=%d", self._where, _name(message), message.attempt + 1)
        given: Any = messages[0] if handler.batch is None else messages
        timeout = handler.timeout or self._box.work.handler_timeout
        try:
            if timeout is None:
                answer = await _invoke(handler, given, extra)
            else:
                async with asyncio.timeout(timeout.total_seconds()):
                    answer = await _invoke(handler, given, extra)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises means that it failed
            names = ", ".join(_name(message) for message in messages)
            _log.exception("%s handler failed on %s", self._where, names)
            return [_failed(error)] * len(messages)
        if handler.batch is None:
            return [_outcome(answer)]
        return _outcomes(answer, messages)


async def _invoke(handler: Handler, given: Any, extra: Sequence[Any]) -> Any:
    if handler.is_async:
        return await handler.function(given, *extra)
    return await asyncio.to_thread(handler.function, given, *extra)


def _failed(error: Exception) -> Outcome:
    reason = "the handler took too long" if isinstance(error, TimeoutError) else describe(error)
    return Outcome.FAILED.because(reason)


def _outcome(answer: Any) -> Outcome:
    if answer is None:
        return Outcome.SUCCESS
    if isinstance(answer, Outcome):
        return answer
    if isinstance(answer, Exception):
        return _failed(answer)
    return Outcome.FAILED.because(f"the handler returned a {type(answer).__name__}; return None or an Outcome")


def _outcomes(answer: Any, messages: list[Message[Any]]) -> list[Outcome]:
    """None for all, an outcome for all, a list in order, or a mapping by message id. What is missing has failed."""
    if answer is None or isinstance(answer, Outcome):
        return [_outcome(answer)] * len(messages)
    if isinstance(answer, Mapping):
        return [
            _outcome(answer[message.message_id]) if message.message_id in answer else MISSING_RESULT
            for message in messages
        ]
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        given = [_outcome(item) for item in answer[: len(messages)]]
        return given + [MISSING_RESULT] * (len(messages) - len(given))
    return [_outcome(answer)] * len(messages)


def _name(message: Message[Any]) -> str:
    return f"topic={message.topic} source={message.source} message_id={message.message_id}"
