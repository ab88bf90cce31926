"""The supervisor: starts and stops the workers and the cleaning of a room, and calls the hooks around them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Generic, NamedTuple, NoReturn

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Event
from postroom._runtime.service import Service
from postroom._runtime.values import BoxHealth
from postroom._runtime.watchdog import Watchdog
from postroom._runtime.worker import Worker, WorkerSource, WorkerT
from postroom.errors import RoomClosed

_log = logging.getLogger("postroom")

Hook = Callable[[], object]

LISTEN_RETRY_SECONDS = 2.0
"""Pause before the listener starts again after an error. Meanwhile the pumps poll."""


class _Running(NamedTuple):
    worker: Worker
    service: Service


class _LoopState(Generic[WorkerT]):
    """The workers of a room in one event loop."""

    def __init__(self, source: WorkerSource[WorkerT]) -> None:
        self.running: dict[str, _Running] = {}
        self.workers: dict[str, WorkerT] = {}
        """The workers of `running`, by box key."""
        self.listener = Service(
            f"store={source.name} listener",
            lambda: source.listen(self.workers),
            restart_delay=LISTEN_RETRY_SECONDS,
            errors=source.errors,
            is_transient=source.is_transient,
        )
        self.watchdog = Watchdog(source.name, lambda: list(self.workers.values()))
        self.change = asyncio.Lock()
        """Held while workers are started or stopped."""
        self.stops_at_once = asyncio.Event()
        """Set if a stop must not wait for handlers any longer."""
        self.is_started = False
        self.is_stopping = False


class Supervisor(Generic[WorkerT]):
    """Runs the workers of one room. To start what runs, or to stop what does not run, does nothing.

    Workers belong to the event loop in which they were started, and each loop has its own. The workers of a loop that
    has ended cannot be stopped any more, and need not be.
    """

    def __init__(
        self,
        source: WorkerSource[WorkerT],
        *,
        shutdown_timeout: timedelta,
        cleans_without_handlers: bool = False,
    ) -> None:
        self._source = source
        self.shutdown_seconds = shutdown_timeout.total_seconds()
        """How long a stop waits for handlers."""
        self.cleans_without_handlers = cleans_without_handlers
        """Whether the janitor also runs in a room without handlers."""
        self._states = PerLoop(lambda: _LoopState(source))
        self.is_closed = False
        """Whether the room is closed. Nothing can be started any more."""
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []

    @property
    def is_running(self) -> bool:
        """True if workers run in any event loop of this process."""
        return any(state.is_started for state in self._states.everywhere())

    @property
    def is_stopping(self) -> bool:
        """True if workers stop in any event loop of this process."""
        return any(state.is_stopping for state in self._states.everywhere())

    def has_more_to_start(self, boxes: Iterable[HandledBox]) -> bool:
        """Returns True if `start` would start anything in this event loop."""
        self._check_open()
        state = self._states.get()
        return not state.is_started or any(len(box.handlers) and box.box.key not in state.running for box in boxes)

    def _check_open(self) -> None:
        if self.is_closed:
            raise RoomClosed

    async def start(self, boxes: Iterable[HandledBox], check: Callable[[], Awaitable[None]]) -> None:
        """Calls the hooks in their order, then `check`, then starts a worker for each box that has handlers.

        If a hook or `check` raises, the stop hooks are called. `check` comes after the hooks, since a hook may make the
        tables that it looks for.
        """
        state = self._states.get()
        async with state.change:
            if state.is_started:
                await check()
            else:
                await self._start_hooks(check)
            boxes = list(boxes)
            working = [box for box in boxes if len(box.handlers)]
            for box in working:
                self._start_worker(state, box)
            if self._source.discovers or (working and self._source.listens):
                state.listener.start()
            if working or self.cleans_without_handlers or any(box.box.kind == "guard" for box in boxes):
                self._source.start_cleaning(boxes, state.workers)
            state.is_started = True

    async def _start_hooks(self, check: Callable[[], Awaitable[None]]) -> None:
        begun = 0
        try:
            for hook in self.on_start:
                begun += 1
                await _call(hook)
            await check()
        except BaseException:
            await self._stop_hooks(begun)
            raise

    def _start_worker(self, state: _LoopState[WorkerT], box: HandledBox) -> None:
        key = box.box.key
        if key in state.running:
            return
        worker = state.workers[key] = self._source.make(box)
        name = f"store={self._source.name} box={key} worker"
        service = Service(name, worker.run, restart_delay=1.0, errors=self._source.errors)
        state.running[key] = _Running(worker, service)
        service.start()
        state.watchdog.start()

    async def start_box(self, box: HandledBox) -> None:
        """Starts the worker of one box, without hooks."""
        self._check_open()
        state = self._states.get()
        async with state.change:
            if len(box.handlers):
                await self._source.check(box)
                self._start_worker(state, box)
                if self._source.listens:
                    state.listener.start()

    async def stop_box(self, key: str) -> None:
        """Stops the worker of one box, without hooks."""
        state = self._states.get()
        async with state.change:
            await self._stop_workers(state, [key])
            if not (state.running or state.is_started):
                await state.listener.cancel()

    async def stop(self) -> None:
        """Stops the workers, then the cleaning; then calls the hooks in reverse order. Logs the errors of hooks."""
        state = self._states.get()
        async with state.change:
            state.is_stopping = state.is_started
            try:
                await self._stop_workers(state, list(state.running))
                await state.listener.cancel()
                await self._source.stop_cleaning()
                if state.is_started:
                    state.is_started = False
                    await self._stop_hooks(len(self.on_start))
            finally:
                state.is_stopping = False

    async def _stop_workers(self, state: _LoopState[WorkerT], keys: list[str]) -> None:
        stopping = [state.running.pop(key) for key in keys if key in state.running]
        for worker, _ in stopping:
            worker.stop()
            state.workers.pop(worker.box.key)
        await asyncio.gather(*(self._end(worker, service, state.stops_at_once) for worker, service in stopping))
        if not state.running:
            state.watchdog.stop()

    def stop_at_once(self) -> None:
        """Ends the wait of a stop in this event loop: handlers are cancelled, and messages are released."""
        self._states.get().stops_at_once.set()

    async def _end(self, worker: Worker, service: Service, at_once: asyncio.Event) -> None:
        try:
            if not await service.ends_within(self.shutdown_seconds, unless=at_once):
                why = "is stopped at once" if at_once.is_set() else f"did not end in {self.shutdown_seconds:.0f} s"
                _log.warning("%s %s: its messages are given back", service.name, why)
        finally:
            await service.cancel()
            if worker.threads:
                _log.warning(
                    "%s: handlers still run in threads (%d), which cannot be cancelled: the process ends when they "
                    "return, or by SIGTERM",
                    service.name,
                    worker.threads,
                )
            try:
                await worker.release_all()
            except Exception as error:  # noqa: BLE001 - the leases end, and other workers claim the messages
                message = "%s could not give its messages back"
                self._source.errors.log(logging.ERROR, message, service.name, error=error)

    async def _stop_hooks(self, begun: int) -> None:
        # The stop hook of each start hook that was called, even if that hook raised.
        hooks = self.on_stop if begun == len(self.on_start) else self.on_stop[:begun]
        for hook in reversed(hooks):
            try:
                await _call(hook)
            except Exception as error:  # noqa: BLE001 - the other hooks must run, too
                message = "store=%s a hook failed on stop"
                self._source.errors.log(logging.ERROR, message, self._source.name, error=error)

    def wake(self, event: Event) -> None:
        """Wakes the workers of this event loop after a verb of this process."""
        workers = self._states.get().workers
        if workers and event.error is None:
            self._source.wake(event, workers)

    def runs(self, key: str) -> bool:
        """Returns True if the worker of this box runs in any event loop of this process."""
        return any(
            key in state.running and state.running[key].service.is_running for state in self._states.everywhere()
        )

    def health(self) -> dict[str, BoxHealth]:
        return {
            key: BoxHealth(service.is_running, worker.in_hand, worker.claimed, worker.last_error)
            for state in self._states.everywhere()
            for key, (worker, service) in state.running.items()
        }

    async def drain(self, boxes: Iterable[HandledBox], *, raise_errors: bool = False) -> int:
        """Handles all messages that are ready, and starts no worker. Returns how many messages were claimed."""
        self._check_open()
        total = 0
        errors: dict[tuple[str, int], BaseException] = {}
        while True:
            claimed = 0
            for box in [box for box in boxes if len(box.handlers)]:
                worker = self._source.make(box)
                claimed += await worker.drain()
                errors |= worker.raised
            total += claimed
            if not claimed:
                break
        if raise_errors and errors:
            raise_all(list(errors.values()))
        return total


def raise_all(errors: list[BaseException]) -> NoReturn:
    """Raises a single error as it is, so that a test can expect its type; several errors as a group."""
    if len(errors) == 1:
        raise errors[0]
    raise BaseExceptionGroup("handlers failed", errors)  # an ExceptionGroup, if all are Exceptions


async def _call(hook: Hook) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result
