"""The supervisor: starts and stops the pumps and the janitor of a room, and calls the hooks around them.

A pump is woken in three ways: by the observer `Supervisor.wake`, after a verb of this process; by the listener, which
waits for notifications of the store (`_listen`); and by polling, which needs neither. See `schedule.py` for why no
wake-up is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NoReturn

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Event
from postroom._room_store import WorkerStore
from postroom._runtime.janitor import Janitor
from postroom._runtime.pump import Pump
from postroom._runtime.service import Service
from postroom._runtime.values import BoxHealth
from postroom._runtime.watchdog import Watchdog
from postroom.errors import RoomClosed

_log = logging.getLogger("postroom")

Hook = Callable[[], object]

LISTEN_RETRY_SECONDS = 2.0
"""Pause before the listener starts again after an error. Meanwhile the pumps poll."""


class _Running(NamedTuple):
    pump: Pump
    service: Service


class _LoopState:
    """The workers of a room in one event loop."""

    def __init__(self, listener: Service, store_name: str) -> None:
        self.running: dict[str, _Running] = {}
        self.listener = listener
        self.watchdog = Watchdog(store_name, lambda: [pump for pump, _ in list(self.running.values())])
        self.change = asyncio.Lock()
        """Held while workers are started or stopped."""
        self.stops_at_once = asyncio.Event()
        """Set if a stop must not wait for handlers any longer."""
        self.is_started = False
        self.is_stopping = False


class Supervisor:
    """Runs the workers of one room. To start what runs, or to stop what does not run, does nothing.

    Workers belong to the event loop in which they were started, and each loop has its own. The workers of a loop that
    has ended cannot be stopped any more, and need not be.
    """

    def __init__(
        self,
        store: WorkerStore,
        janitor: Janitor,
        *,
        shutdown_timeout: timedelta,
        cleans_without_handlers: bool = False,
    ) -> None:
        self._store = store
        self._janitor = janitor
        self.shutdown_seconds = shutdown_timeout.total_seconds()
        """How long a stop waits for handlers."""
        self.cleans_without_handlers = cleans_without_handlers
        """Whether the janitor also runs in a room without handlers."""
        self._states = PerLoop(self._new_state)
        self.is_closed = False
        """Whether the room is closed. Nothing can be started any more."""
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []

    def _new_state(self) -> _LoopState:
        name = f"store={self._store.name} listener"
        errors, is_transient = self._store.errors, self._store.is_transient
        return _LoopState(
            Service(name, self._listen, restart_delay=LISTEN_RETRY_SECONDS, errors=errors, is_transient=is_transient),
            self._store.name,
        )

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
        """Calls the hooks in their order, then `check`, then starts a pump for each box that has handlers.

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
                self._start_pump(state, box)
            if working and self._store.features.notify:
                state.listener.start()
            if working or self.cleans_without_handlers:
                self._janitor.start(boxes, self._store, self._is_overdue)
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

    def _start_pump(self, state: _LoopState, box: HandledBox) -> None:
        if box.box.key in state.running:
            return
        pump = Pump(self._store, box.box, box.handlers, topics=box.claimed_topics)
        name = f"store={self._store.name} box={box.box.key} worker"
        service = Service(name, pump.run, restart_delay=1.0, errors=self._store.errors)
        state.running[box.box.key] = _Running(pump, service)
        service.start()
        state.watchdog.start()

    async def start_box(self, box: HandledBox) -> None:
        """Starts the pump of one box, without hooks."""
        self._check_open()
        state = self._states.get()
        async with state.change:
            if len(box.handlers):
                await self._check_order(box)
                self._start_pump(state, box)

    async def _check_order(self, box: HandledBox) -> None:
        """Raises OrderMismatch before a worker starts that could not claim. If the store fails, the claim checks."""
        try:
            await self._store.check_order(box.box)
        except Exception as error:
            if not self._store.is_transient(error):
                raise

    async def stop_box(self, key: str) -> None:
        """Stops the pump of one box, without hooks."""
        state = self._states.get()
        async with state.change:
            await self._stop_pumps(state, [key])

    async def stop(self) -> None:
        """Stops the pumps, then the janitor; then calls the hooks in reverse order. Logs the errors of hooks."""
        state = self._states.get()
        async with state.change:
            state.is_stopping = state.is_started
            try:
                await self._stop_pumps(state, list(state.running))
                await state.listener.cancel()
                await self._janitor.stop()
                if state.is_started:
                    state.is_started = False
                    await self._stop_hooks(len(self.on_start))
            finally:
                state.is_stopping = False

    async def _stop_pumps(self, state: _LoopState, keys: list[str]) -> None:
        stopping = [state.running.pop(key) for key in keys if key in state.running]
        for pump, _ in stopping:
            pump.stop()
        await asyncio.gather(*(self._end(pump, service, state.stops_at_once) for pump, service in stopping))
        if not state.running:
            state.watchdog.stop()

    def stop_at_once(self) -> None:
        """Ends the wait of a stop in this event loop: handlers are cancelled, and messages are released."""
        self._states.get().stops_at_once.set()

    async def _end(self, pump: Pump, service: Service, at_once: asyncio.Event) -> None:
        try:
            if not await service.ends_within(self.shutdown_seconds, unless=at_once):
                why = "is stopped at once" if at_once.is_set() else f"did not end in {self.shutdown_seconds:.0f} s"
                _log.warning("%s %s: its messages are given back", service.name, why)
        finally:
            await service.cancel()
            if pump.threads:
                _log.warning(
                    "%s: handlers still run in threads (%d), which cannot be cancelled: the process ends when they "
                    "return, or by SIGTERM",
                    service.name,
                    pump.threads,
                )
            try:
                await pump.release_all()
            except Exception as error:  # noqa: BLE001 - the leases end, and other workers claim the messages
                message = "%s could not give its messages back"
                self._store.errors.log(logging.ERROR, message, service.name, error=error)

    async def _stop_hooks(self, begun: int) -> None:
        # The stop hook of each start hook that was called, even if that hook raised.
        hooks = self.on_stop if begun == len(self.on_start) else self.on_stop[:begun]
        for hook in reversed(hooks):
            try:
                await _call(hook)
            except Exception as error:  # noqa: BLE001 - the other hooks must run, too
                message = "store=%s a hook failed on stop"
                self._store.errors.log(logging.ERROR, message, self._store.name, error=error)

    def wake(self, event: Event) -> None:
        """Wakes the pump of a box after a verb of this process, now and when its messages become due."""
        running = self._states.get().running.get(event.box.key)
        if running is None or event.error is not None:
            return
        running.pump.wake()
        if event.verb == "put":
            now = datetime.now(UTC)
            for due in {draft.due for draft in event.given if draft.due is not None and draft.due > now}:
                running.pump.expect((due - now).total_seconds())

    async def _listen(self) -> None:
        """Wakes pumps when the store notifies of a message that another process has put.

        After a reconnect, the store returns no keys: notifications may be lost, so every pump claims.
        """
        running = self._states.get().running
        while True:
            check_cancelled()
            keys = await self._store.wait()
            for key, (pump, _) in running.items():
                if not keys or key in keys:
                    pump.wake()

    def _is_overdue(self, key: str) -> bool:
        running = self._states.get().running.get(key)
        return running is not None and running.pump.is_overdue

    def runs(self, key: str) -> bool:
        """Returns True if the pump of this box runs in any event loop of this process."""
        return any(
            key in state.running and state.running[key].service.is_running for state in self._states.everywhere()
        )

    def health(self) -> dict[str, BoxHealth]:
        return {
            key: BoxHealth(service.is_running, pump.in_hand, pump.claimed, pump.last_error)
            for state in self._states.everywhere()
            for key, (pump, service) in state.running.items()
        }

    async def drain(self, boxes: Iterable[HandledBox], *, raise_errors: bool = False) -> int:
        """Handles all messages that are ready, and starts no worker. Returns how many messages were claimed."""
        self._check_open()
        total = 0
        errors: dict[int, BaseException] = {}
        while True:
            claimed = 0
            for box in [box for box in boxes if len(box.handlers)]:
                pump = Pump(self._store, box.box, box.handlers, topics=box.claimed_topics)
                claimed += await pump.drain()
                errors |= pump.raised
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
