"""Running a handler on a piece of work: decode, call, and make every answer an outcome."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any

from postroom._faces import check
from postroom._faces.handlers import Handler
from postroom._kernel.decide import Outcome, describe
from postroom._kernel.message import Message
from postroom._kernel.policy import Box
from postroom._runtime.fault import Fault
from postroom._runtime.plan import Piece
from postroom._runtime.report import name
from postroom.errors import ArgumentTypeError, ArgumentValueError, Undecodable

_log = logging.getLogger("postroom")

MISSING_RESULT = Outcome.FAILED.because("the handler returned no result for this message")


class Executor:
    """Calls the handlers of one box."""

    def __init__(
        self,
        box: Box,
        where: str,
        tell: Callable[..., None],
        is_heard: Callable[[str], bool],
    ) -> None:
        self._box = box
        self.where = where
        self._tell = tell
        self._is_heard = is_heard
        self._threads = ThreadPoolExecutor(box.work.concurrency, f"postroom {box.key}")
        self._in_threads: set[asyncio.Future[Any]] = set()
        self.closing = False
        """Set before handlers are cancelled: only then is a cancellation ours."""
        self.runner: asyncio.Task[Any] | None = None
        """The task of the pump: an event loop that ends cancels it, too, before any handler notices."""

    @property
    def threads(self) -> int:
        """Threads in which handlers run. A cancellation ends the wait for them, but not the threads."""
        return sum(not running.done() for running in self._in_threads)

    @property
    def is_ending(self) -> bool:
        """Whether a cancellation means that the worker must end. Otherwise it is the doing of a handler."""
        return self.closing or (self.runner is not None and self.runner.cancelling() > 0)

    async def run(self, piece: Piece, *extra: Any) -> list[Outcome] | Fault:
        """An outcome for each message of the piece; or a fault, if the handler raised on a batch of more than one.
        Only our own cancellation is raised."""
        started = time.perf_counter()
        if piece.handler is None:
            outcomes: list[Outcome] | Fault = self._unhandled(piece)
        else:
            outcomes = await self._handled(piece, piece.handler, extra)
        if isinstance(outcomes, Fault):
            self._tell("handle", piece.messages, None, time.perf_counter() - started, outcomes.error)
        else:
            self._tell("handle", piece.messages, outcomes, time.perf_counter() - started)
        return outcomes

    async def run_one(self, handler: Handler, message: Message[Any]) -> Outcome:
        """The same for one message and its handler: most of what is handled comes this way, so it is short."""
        started = time.perf_counter()
        if type(message.payload) is Undecodable:
            outcome = self._undecodable(message.payload)
        else:
            outcome = self.outcome_of((await self._answer(handler, message, (message,), ()))[0])
        self._tell("handle", [message], [outcome], time.perf_counter() - started)
        return outcome

    def direct(self, handler: Handler) -> Callable[[Message[Any]], Coroutine[Any, Any, Any]] | None:
        """The function of a plain handler, if nothing has to be done around its call: no thread, no timeout, no record
        and no event. Its caller passes what it returns to `outcome_of`, and what it raises to `failed`."""
        if not handler.is_async or handler.timeout or self._box.work.handler_timeout:
            return None
        if _log.isEnabledFor(logging.INFO) or self._is_heard("handle"):
            return None
        return handler.function

    def outcome_of(self, answer: Any) -> Outcome:
        return _outcome(answer)

    def _undecodable(self, error: Undecodable) -> Outcome:
        return Fault(self._box.work.on_undecodable, None, describe(error), error, ran=False)

    async def _handled(self, piece: Piece, handler: Handler, extra: Sequence[Any]) -> list[Outcome] | Fault:
        messages = list(_decoded(piece))
        outcomes: list[Outcome] = []
        if messages:
            given: Any = messages[0] if handler.batch is None else messages
            answer, raised = await self._answer(handler, given, messages, extra)
            if answer is None:
                outcomes = [Outcome.SUCCESS] * len(messages)
            elif raised and len(messages) > 1:
                fault: Fault = answer
                return fault
            else:
                outcomes = [_outcome(answer)] if handler.batch is None else _outcomes(answer, messages)
        if len(outcomes) == len(piece.messages):
            return outcomes
        decoded = iter(outcomes)
        return [
            self._undecodable(message.payload)
            if type(message.payload) is Undecodable
            else next(decoded, Outcome.RETRY)  # behind an undecodable one in its group: the worker gives it back
            for message in piece.messages
        ]

    def _unhandled(self, piece: Piece) -> list[Outcome]:
        work = self._box.work
        reason = "no handler for this topic"
        outcome = {
            "abandon": Fault("failed", None, reason, ran=False),
            "release": Fault("retry", work.idle[1], reason, ran=False),
            "dead": Fault("dead", None, reason, ran=False),
        }[work.on_unhandled]
        return [outcome] * len(piece.messages)

    async def _answer(
        self, handler: Handler, given: Any, messages: Sequence[Message[Any]], extra: Sequence[Any]
    ) -> tuple[Any, bool]:
        """What the handler returns; if it raised, a fault and True."""
        if _log.isEnabledFor(logging.INFO):
            for message in messages:
                _log.info("%s handling %s attempt=%d", self.where, name(message), message.attempt + 1)
        longest = handler.timeout or self._box.work.handler_timeout
        try:
            if not handler.is_async:
                return await self._invoke_in_thread(handler.function, (given, *extra), longest), False
            if longest is None:
                answer = await handler.function(given, *extra)
            else:
                answer = await self._invoke_in_time(handler.function, (given, *extra), longest)
            await self.end_cancellation()
        except BaseException as error:  # noqa: BLE001 - `failed` raises what is not the handler's fault
            return await self.failed(error), True
        return answer, False

    async def failed(self, error: BaseException) -> Fault:
        """The outcome of a handler that raised. Raises what is not its fault: a shutdown, an interrupt."""
        if self.is_ending:  # first: an interrupt that is raised now would end the loop before messages are given back
            raise asyncio.CancelledError from error
        interrupt = _interrupt_behind(error)
        if interrupt is not None:
            raise interrupt
        await self.end_cancellation()
        return Fault("failed", None, describe(error), error)

    async def end_cancellation(self) -> None:
        """A handler has cancelled the task in which it runs: its outcome counts, and no other message pays for it."""
        task = asyncio.current_task()
        while task is not None and task.cancelling() and not self.is_ending:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # where it is raised, unless the handler has caught it
            task.uncancel()

    async def _invoke_in_time(self, function: Callable[..., Any], given: tuple[Any, ...], longest: timedelta) -> Any:
        try:
            async with asyncio.timeout(longest.total_seconds()) as limit:
                return await function(*given)
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(longest) from None
            raise

    async def _invoke_in_thread(
        self, function: Callable[..., Any], given: tuple[Any, ...], longest: timedelta | None
    ) -> Any:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, context.run, _without_stop_iteration, function, given)
        self._in_threads.add(running)
        done, _ = await asyncio.wait([running], timeout=None if longest is None else longest.total_seconds())
        if longest is not None and not done:
            # A thread cannot be stopped; to go on without it would be to handle a message twice at the same time.
            _log.warning("%s a handler in a thread took longer than %s; waiting for it", self.where, longest)
            await asyncio.wait([running])
            self._in_threads.discard(running)
            raise HandlerTimeout(longest) from running.exception()
        self._in_threads.discard(running)
        answer = running.result()
        return await answer if inspect.isawaitable(answer) else answer


class HandlerTimeout(TimeoutError):
    """A handler took longer than it may."""

    def __init__(self, longest: timedelta) -> None:
        super().__init__(f"the handler took longer than {longest}")


def _without_stop_iteration(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """A future cannot carry a StopIteration: whoever waits for it would wait for ever."""
    try:
        return function(*given)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """The interrupt that ended the handler, also where the handler has raised another error in its place.

    SystemExit is none: a handler that calls `sys.exit` has failed. Otherwise its message would end one worker after
    the other, and no attempt would be counted.
    """
    chain: BaseException | None = error
    seen: set[int] = set()  # a chain may be a circle
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        if isinstance(chain, KeyboardInterrupt):
            return chain
        if isinstance(chain, BaseExceptionGroup) and chain.subgroup(KeyboardInterrupt) is not None:
            return KeyboardInterrupt()
        chain = chain.__cause__ or chain.__context__
    return None


def _decoded(piece: Piece) -> Iterator[Message[Any]]:
    """What the handler gets. In a group, nothing behind a message that cannot be decoded: it would overtake it."""
    for message in piece.messages:
        if type(message.payload) is not Undecodable:
            yield message
        elif piece.ordered:
            return


def _outcome(answer: Any) -> Outcome:
    if answer is None:
        return Outcome.SUCCESS
    if isinstance(answer, Outcome):
        return _checked(answer)
    if isinstance(answer, Exception):
        return Outcome.FAILED.because(describe(answer))
    return Outcome.FAILED.because(f"the handler returned a {type(answer).__name__}; return None or an Outcome")


def _checked(outcome: Outcome) -> Outcome:
    """What no store could carry out has failed: it must not keep other outcomes from being settled."""
    try:
        check.optional_duration("the delay of an outcome", outcome.delay, zero=True)
        check.optional_error("the reason of an outcome", outcome.reason)
    except (ArgumentTypeError, ArgumentValueError) as error:
        return Outcome.FAILED.because(str(error))
    return outcome


def _outcomes(answer: Any, messages: list[Message[Any]]) -> list[Outcome]:
    """None for all, an outcome for all, a list in order, or a mapping by key or message id. What is missing failed."""
    try:
        return _outcomes_of_each(answer, messages)
    except Exception as error:  # noqa: BLE001 - a list or a mapping of the user's own may raise anything
        return [Fault("failed", None, describe(error), error)] * len(messages)


def _outcomes_of_each(answer: Any, messages: list[Message[Any]]) -> list[Outcome]:
    if isinstance(answer, Mapping):
        return [
            next((_outcome(answer[id_]) for id_ in (message.key, message.message_id) if id_ in answer), MISSING_RESULT)
            for message in messages
        ]
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        given = [_outcome(item) for item in islice(answer, len(messages))]
        return given + [MISSING_RESULT] * (len(messages) - len(given))
    return [_outcome(answer)] * len(messages)
