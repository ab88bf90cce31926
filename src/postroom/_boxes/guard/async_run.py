"""Runs of an async guard: the context manager, the renewal of its lease, and outcomes that no cancellation stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from postroom._boxes.guard.run import Run
from postroom._boxes.transaction import SEPARATE
from postroom._kernel.message import Claim
from postroom._kernel.program import Program, async_runner

T = TypeVar("T")
_log = logging.getLogger("postroom")
_run_program: Callable[[Program[Any]], Coroutine[Any, Any, Any]] = async_runner(lambda program: program)


class AsyncRun(Run):
    """One execution of a guarded handler. Use it with `async with`."""

    async def __aenter__(self) -> Self:
        await self._begin_unless_cancelled()
        if not self.acquired:
            return self
        try:
            self._stop_renewal = self._renew_while_running()
            if self._guard.policy.mode == "transactional":
                self._transaction = self._guard.store.transaction()  # type: ignore[attr-defined]
                self.tx = await self._transaction.__aenter__()
                self._open_scope()
        except BaseException as error:
            await self._leave_after(error)
            raise
        return self

    async def _begin_unless_cancelled(self) -> None:
        """Begins. If the task is cancelled meanwhile, the key is released: no caller would have it."""
        stops = asyncio.Event()

        async def pause(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stops.wait(), seconds)
                raise asyncio.CancelledError

        task = asyncio.create_task(_run_program(self._begin(pause)))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            stops.set()
            with contextlib.suppress(TimeoutError):  # the caller gets the cancellation
                await shielded(self._undo(task), self._guard.policy.completion_timeout.total_seconds())
            raise

    async def _undo(self, beginning: asyncio.Task[Any]) -> None:
        await asyncio.wait({beginning})
        if not beginning.cancelled() and beginning.exception() is None and self.acquired:
            await _run_program(self._guard.give_back(self._begun, SEPARATE))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.acquired:
            return
        error = self._error_of(error)
        if self._transaction is not None:
            await self._end_transaction(error, trace)
        elif error is not None:
            await self._leave_after(error)
        else:
            await self._leave(self._succeed())

    async def _end_transaction(self, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commits the completion together with the writes of the handler, or rolls both back.

        Not shielded: whatever interrupts it, the database has done all of it or nothing.
        """
        self._close_scope()
        completed = False
        try:
            if error is None:
                try:
                    self._check_refusal()
                    await _run_program(self._succeed(self.tx))
                    completed = True
                except BaseException as failure:
                    await self._transaction.__aexit__(type(failure), failure, failure.__traceback__)
                    raise
            await self._transaction.__aexit__(None if error is None else type(error), error, trace)
        except BaseException as failure:
            after = self._settle_unknown(failure) if completed else self._give_up(failure)
            if not await self._leave(after) or not isinstance(failure, Exception):
                raise  # a cancellation is passed on, even if the commit has taken place
            return
        await (self._leave(None) if error is None else self._leave_after(error))

    async def _leave_after(self, error: BaseException) -> None:
        """Stores that the handler has raised. If that takes too long it is logged: the caller gets the error."""
        try:
            await self._leave(self._give_up(error))
        except TimeoutError as late:
            _log.error("%s; the lease ends by itself: %s", late, self._guard.where(self._begun))

    async def _leave(self, program: Program[T] | None) -> T | None:
        """Ends the renewal, and stores the outcome, even if the task is cancelled meanwhile."""
        stop, self._stop_renewal = self._stop_renewal, None
        if stop is not None:
            stop()
        if program is None:
            return None
        seconds = self._guard.policy.completion_timeout.total_seconds()
        result: T = await shielded(_run_program(program), seconds)
        return result

    def _renew_while_running(self) -> Callable[[], None] | None:
        """Renews the lease at the part of it that the guard says. Returns a function that ends this."""
        claim, work = self._claim, self._guard.box.work
        if claim is None or not work.renew or not self._guard.policy.has_lease_end:
            return None
        return _Renewal(self, claim, work.lease.total_seconds() * work.renew).stop

    async def renew(self, claim: Claim) -> bool:
        """Renews the lease once. Returns False if it is lost."""
        [renewed] = await self._guard.store.renew(self._guard.box, [claim], self._guard.box.work.lease)
        if not renewed:
            self._lease_lost = True
            _log.warning("the lease was lost while the handler runs: %s", self._guard.where(claim))
        return bool(renewed)


class _Renewal:
    """Renews the lease of one run. Most handlers end before the first renewal, so no task is started before."""

    def __init__(self, run: AsyncRun, claim: Claim, seconds: float) -> None:
        self._run = run
        self._claim = claim
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            try:
                if not await self._run.renew(self._claim):
                    return
            except Exception as error:  # noqa: BLE001 - the store may recover before the lease ends
                _log.warning("a lease could not be renewed (%s)", type(error).__name__)
            await asyncio.sleep(self._seconds)

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


async def shielded(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Runs a coroutine to its end, even if the calling task is cancelled meanwhile; the cancellation follows then.

    Raises TimeoutError after so many seconds.
    """
    loop = asyncio.get_running_loop()
    task, deadline = loop.create_task(work), loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        except asyncio.CancelledError as error:
            cancelled = error
            continue
        if not task.done() and loop.time() >= deadline:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            raise TimeoutError(f"the outcome of a handler was not stored within {seconds:g} seconds")
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("the outcome of a cancelled handler was not stored (%s)", type(failure).__name__)
        raise cancelled
    return task.result()
