"""Calls handlers and turns what they return or raise into outcomes."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import islice

from postroom._boxes import check
from postroom._boxes.handlers import Handler
from postroom._kernel.decide import Outcome, describe
from postroom._kernel.message import AnyMessage
from postroom._kernel.policy import Box
from postroom._runtime.fault import Fault
from postroom._runtime.message_log import name
from postroom._runtime.plan import WorkUnit
from postroom.errors import ArgumentTypeError, ArgumentValueError, StoreBusy, Undecodable
from postroom.spi import Tx

_log = logging.getLogger("postroom")

MISSING_RESULT = Outcome.FAILED.because("the handler returned no result for this message")


class Executor:
    """Calls the handlers of one box."""

    def __init__(
        self,
        box: Box,
        where: str,
        emit: Callable[..., None],
        is_observed: Callable[[str], bool],
    ) -> None:
        self._box = box
        self.where = where
        self._emit = emit
        self._is_observed = is_observed
        self._threads = ThreadPoolExecutor(box.work.concurrency, f"postroom {box.key}")
        self._in_threads: set[asyncio.Future[object]] = set()
        self.closing = False
        """Set before the pump cancels handlers. A cancellation before that comes from a handler."""
        self.runner: asyncio.Task[None] | None = None
        """The task of the pump. An event loop that ends cancels it together with the handlers."""

    @property
    def threads(self) -> int:
        """Threads in which handlers run. A cancellation ends the wait for a thread, but not the thread."""
        return sum(not running.done() for running in self._in_threads)

    @property
    def is_ending(self) -> bool:
        """True if a cancellation means that the worker must end. Otherwise a handler has cancelled its task."""
        return self.closing or (self.runner is not None and self.runner.cancelling() > 0)

    async def run(self, unit: WorkUnit, *extra: Tx) -> list[Outcome] | Fault:
        """Calls the handler of a unit. Returns an outcome for each message; or a fault, if the handler raised on a
        batch of more than one. Raises only the cancellation of the worker."""
        started = time.perf_counter()
        if unit.handler is None:
            outcomes: list[Outcome] | Fault = self._unhandled(unit)
        else:
            outcomes = await self._handled(unit, unit.handler, extra)
        if isinstance(outcomes, Fault):
            self._emit("handle", unit.messages, None, time.perf_counter() - started, outcomes.error)
        else:
            self._emit("handle", unit.messages, outcomes, time.perf_counter() - started)
        return outcomes

    async def run_one(self, handler: Handler, message: AnyMessage) -> Outcome:
        """Calls the handler of one message and returns the outcome."""
        started = time.perf_counter()
        if type(message.payload) is Undecodable:
            outcome = self._undecodable(message.payload)
        else:
            outcome = outcome_of((await self._call(handler, message, (message,), ()))[0])
        self._emit("handle", [message], [outcome], time.perf_counter() - started)
        return outcome

    def direct(self, handler: Handler) -> Callable[[AnyMessage], Awaitable[object]] | None:
        """Returns the function of a handler that takes one message, if its call needs no thread, no timeout, no log
        record and no event. The caller passes what it returns to `outcome_of`, and what it raises to `failed`."""
        if not handler.is_async or handler.timeout or self._box.work.handler_timeout:
            return None
        if _log.isEnabledFor(logging.INFO) or self._is_observed("handle"):
            return None
        return handler.function

    def _undecodable(self, error: Undecodable) -> Outcome:
        return Fault(self._box.work.on_undecodable, None, describe(error), error, ran=False)

    async def _handled(self, unit: WorkUnit, handler: Handler, extra: Sequence[Tx]) -> list[Outcome] | Fault:
        messages = list(_decoded(unit))
        outcomes: list[Outcome] = []
        if messages:
            given = messages[0] if handler.batch is None else messages
            result, raised = await self._call(handler, given, messages, extra)
            if result is None:
                outcomes = [Outcome.SUCCESS] * len(messages)
            elif raised and isinstance(result, Fault) and len(messages) > 1:
                return result
            else:
                outcomes = [outcome_of(result)] if handler.batch is None else _outcomes(result, messages)
        if len(outcomes) == len(unit.messages):
            return outcomes
        decoded = iter(outcomes)
        return [
            self._undecodable(message.payload)
            if type(message.payload) is Undecodable
            else next(decoded, Outcome.RETRY)  # behind an undecodable message of its group: the worker releases it
            for message in unit.messages
        ]

    def _unhandled(self, unit: WorkUnit) -> list[Outcome]:
        work = self._box.work
        reason = "no handler for this topic"
        outcome = {
            "abandon": Fault("failed", None, reason, ran=False),
            "release": Fault("retry", work.idle[1], reason, ran=False),
            "dead": Fault("dead", None, reason, ran=False),
        }[work.on_unhandled]
        return [outcome] * len(unit.messages)

    async def _call(
        self,
        handler: Handler,
        given: AnyMessage | list[AnyMessage],
        messages: Sequence[AnyMessage],
        extra: Sequence[Tx],
    ) -> tuple[object, bool]:
        """Returns what the handler returns, and False; if it raises, a fault and True."""
        if _log.isEnabledFor(logging.INFO):
            for message in messages:
                _log.info("%s handling %s attempt=%d", self.where, name(message), message.attempt + 1)
        longest = handler.timeout or self._box.work.handler_timeout
        try:
            if not handler.is_async:
                return await self._invoke_in_thread(handler.function, (given, *extra), longest), False
            if longest is None:
                result = await handler.function(given, *extra)
            else:
                result = await self._invoke_in_time(handler.function, (given, *extra), longest)
            await self.end_cancellation()
        except BaseException as error:  # noqa: BLE001 - `failed` raises what is not the handler's fault
            return await self.failed(error), True
        return result, False

    async def failed(self, error: BaseException) -> Fault:
        """Returns the outcome of a handler that raised. Raises a cancellation of the worker and an interrupt."""
        if self.is_ending:  # first: an interrupt would end the event loop before the messages are released
            raise asyncio.CancelledError from error
        interrupt = _find_interrupt(error)
        if interrupt is not None:
            raise interrupt
        await self.end_cancellation()
        if isinstance(error, StoreBusy):  # not the fault of the message: the stores of a server have too few places
            return Fault("retry", self._box.work.idle[1], describe(error), error)
        return Fault("failed", None, describe(error), error)

    async def end_cancellation(self) -> None:
        """Undoes a cancellation of this task by the handler. Its outcome counts, and the next message is handled."""
        task = asyncio.current_task()
        while task is not None and task.cancelling() and not self.is_ending:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # raises the CancelledError, unless the handler has caught it
            task.uncancel()

    async def _invoke_in_time(
        self, function: Callable[..., Awaitable[object]], given: tuple[object, ...], longest: timedelta
    ) -> object:
        try:
            async with asyncio.timeout(longest.total_seconds()) as limit:
                return await function(*given)
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(longest) from None
            raise

    async def _invoke_in_thread(
        self, function: Callable[..., object], given: tuple[object, ...], longest: timedelta | None
    ) -> object:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, context.run, _without_stop_iteration, function, given)
        self._in_threads.add(running)
        done, _ = await asyncio.wait([running], timeout=None if longest is None else longest.total_seconds())
        if longest is not None and not done:
            # A thread cannot be stopped, and a message must not be handled twice at the same time.
            _log.warning("%s a handler in a thread took longer than %s; waiting for it", self.where, longest)
            await asyncio.wait([running])
            self._in_threads.discard(running)
            raise HandlerTimeout(longest) from running.exception()
        self._in_threads.discard(running)
        result = running.result()
        return await result if inspect.isawaitable(result) else result


class HandlerTimeout(TimeoutError):
    """A handler took longer than its timeout."""

    def __init__(self, longest: timedelta) -> None:
        super().__init__(f"the handler took longer than {longest}")


def _without_stop_iteration(function: Callable[..., object], given: tuple[object, ...]) -> object:
    """Calls the function. A future cannot contain a StopIteration: its `await` would never return."""
    try:
        return function(*given)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error


def _find_interrupt(error: BaseException) -> BaseException | None:
    """Returns the KeyboardInterrupt that ended the handler, even if the handler has raised another error from it.

    SystemExit is no interrupt: a handler that calls `sys.exit` has failed. Otherwise its message would end one worker
    after the other, and no attempt would be counted.
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


def _decoded(unit: WorkUnit) -> Iterator[AnyMessage]:
    """Yields the messages for the handler. In a group, none behind an undecodable message: it would overtake it."""
    for message in unit.messages:
        if type(message.payload) is not Undecodable:
            yield message
        elif unit.ordered:
            return


def outcome_of(result: object) -> Outcome:
    """Returns the outcome for what a handler returned."""
    if result is None:
        return Outcome.SUCCESS
    if isinstance(result, Outcome):
        return _checked(result)
    if isinstance(result, Exception):
        return Outcome.FAILED.because(describe(result))
    return Outcome.FAILED.because(f"the handler returned a {type(result).__name__}; return None or an Outcome")


def _checked(outcome: Outcome) -> Outcome:
    """Returns the outcome, or a failure if no store could store it: it must not keep other outcomes from it."""
    try:
        check.optional_duration("the delay of an outcome", outcome.delay, zero=True)
        check.optional_error("the reason of an outcome", outcome.reason)
    except (ArgumentTypeError, ArgumentValueError) as error:
        return Outcome.FAILED.because(str(error))
    return outcome


def _outcomes(result: object, messages: list[AnyMessage]) -> list[Outcome]:
    """Returns the outcomes of a batch. Its handler returns None or an outcome for all, a list in order, or a mapping by
    key or message id. A message without a result has failed."""
    try:
        return _outcomes_of_each(result, messages)
    except Exception as error:  # noqa: BLE001 - a list or mapping class of the user may raise anything
        return [Fault("failed", None, describe(error), error)] * len(messages)


def _outcomes_of_each(result: object, messages: list[AnyMessage]) -> list[Outcome]:
    if isinstance(result, Mapping):
        return [
            next(
                (outcome_of(result[id_]) for id_ in (message.key, message.message_id) if id_ in result), MISSING_RESULT
            )
            for message in messages
        ]
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        given = [outcome_of(item) for item in islice(result, len(messages))]
        return given + [MISSING_RESULT] * (len(messages) - len(given))
    return [outcome_of(result)] * len(messages)
