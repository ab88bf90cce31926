"""The supervisor: starts and stops the pumps and the janitor of a room, and the hooks around them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, NoReturn

from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Event
from postroom._runtime.janitor import Janitor
from postroom._runtime.pump import Pump
from postroom._runtime.service import Service, check_cancelled
from postroom._runtime.watchdog import Watchdog
from postroom.errors import RoomClosed

_log = logging.getLogger("postroom")

Hook = Callable[[], Any]

DEAF_SECONDS = 2.0
"""Between attempts to hear again; meanwhile the pumps poll."""
WAKING = ("put", "replay", "mark", "cancel")
"""What may give a pump something to claim."""


class BoxHealth(NamedTuple):
    """How the pump of a box is doing."""

    running: bool
    in_hand: int
    claimed: int
    """Messages claimed since it started."""
    last_error: str | None
    """The type of what the store raised, if its last turn failed."""


class _Running(NamedTuple):
    pump: Pump
    service: Service


class _Crew:
    """What a room runs in one event loop."""

    def __init__(self, listener: Service, store_name: str) -> None:
        self.running: dict[str, _Running] = {}
        self.listener = listener
        self.watchdog = Watchdog(store_name, lambda: [pump for pump, _ in list(self.running.values())])
        self.change = asyncio.Lock()
        self.hurry = asyncio.Event()
        """Set where a stop must not wait for handlers any longer."""
        self.is_started = False
        self.is_stopping = False


class Supervisor:
    """One per room. Starting what runs, and stopping what does not, is safe and does nothing.

    Workers belong to the event loop that they were started in. Each loop has its own: what an earlier loop has left
    behind cannot be stopped any more, and need not be.
    """

    def __init__(
        self, store: Any, janitor: Janitor, *, shutdown_timeout: timedelta, cleans_alone: bool = False
    ) -> None:
        self._store = store
        self._janitor = janitor
        self.patience = shutdown_timeout.total_seconds()
        """Seconds that a stop waits for handlers."""
        self.cleans_alone = cleans_alone
        """Whether the janitor works in a room without handlers too."""
        self._crews = PerLoop(self._make_crew)
        self.is_closed = False
        """Whether the room was closed: nothing can be started any more."""
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []

    def _make_crew(self) -> _Crew:
        name = f"store={self._store.name} listener"
        errors, passes = self._store.errors, self._store.passes
        return _Crew(
            Service(name, self._listen, restart_delay=DEAF_SECONDS, errors=errors, passes=passes), self._store.name
        )

    @property
    def is_running(self) -> bool:
        """In whatever event loop of this process."""
        return any(crew.is_started for crew in self._crews.everywhere())

    @property
    def is_stopping(self) -> bool:
        """In any event loop of this process."""
        return any(crew.is_stopping for crew in self._crews.everywhere())

    def has_more_to_start(self, boxes: Iterable[Any]) -> bool:
        """Whether `start` would start anything in this event loop."""
        self._check_open()
        crew = self._crews.get()
        return not crew.is_started or any(len(box.handlers) and box.box.key not in crew.running for box in boxes)

    def _check_open(self) -> None:
        if self.is_closed:
            raise RoomClosed

    async def start(self, boxes: Iterable[Any], check: Callable[[], Awaitable[None]]) -> None:
        """Hooks in their order, then `check`, then a pump for every box that has handlers. A hook that fails undoes the
        start. So does `check`: it comes after the hooks, since one of them may make the tables that it looks for."""
        crew = self._crews.get()
        async with crew.change:
            if crew.is_started:
                await check()
            else:
                await self._start_hooks(check)
            boxes = list(boxes)
            working = [box for box in boxes if len(box.handlers)]
            for box in working:
                self._start_pump(crew, box)
            if working and self._store.features.notify:
                crew.listener.start()
            if working or self.cleans_alone:
                self._janitor.start(boxes, self._store, self._is_overdue)
            crew.is_started = True

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

    def _start_pump(self, crew: _Crew, box: Any) -> None:
        if box.box.key in crew.running:
            return
        pump = Pump(self._store, box.box, box.handlers, topics=box.claimed_topics)
        name = f"store={self._store.name} box={box.box.key} worker"
        service = Service(name, pump.run, restart_delay=1.0, errors=self._store.errors)
        crew.running[box.box.key] = _Running(pump, service)
        service.start()
        crew.watchdog.start()

    async def start_box(self, box: Any) -> None:
        self._check_open()
        crew = self._crews.get()
        async with crew.change:
            if len(box.handlers):
                await self._check_order(box)
                self._start_pump(crew, box)

    async def _check_order(self, box: Any) -> None:
        """A worker on a box of another order would break it, or fail for ever. It checks again when it claims."""
        try:
            await self._store.check_order(box.box)
        except Exception as error:
            if not self._store.passes(error):
                raise

    async def stop_box(self, key: str) -> None:
        crew = self._crews.get()
        async with crew.change:
            await self._stop_pumps(crew, [key])

    async def stop(self) -> None:
        """Pumps, gracefully; then the janitor; then hooks, in reverse. Errors of hooks are logged."""
        crew = self._crews.get()
        async with crew.change:
            crew.is_stopping = crew.is_started
            try:
                await self._stop_pumps(crew, list(crew.running))
                await crew.listener.cancel()
                await self._janitor.stop()
                if crew.is_started:
                    crew.is_started = False
                    await self._stop_hooks(len(self.on_start))
            finally:
                crew.is_stopping = False

    async def _stop_pumps(self, crew: _Crew, keys: list[str]) -> None:
        stopping = [crew.running.pop(key) for key in keys if key in crew.running]
        for pump, _ in stopping:
            pump.stop()
        await asyncio.gather(*(self._end(pump, service, crew.hurry) for pump, service in stopping))
        if not crew.running:
            crew.watchdog.stop()

    def hurry(self) -> None:
        """End the wait of a stop in this event loop: handlers are cancelled, and messages are given back."""
        self._crews.get().hurry.set()

    async def _end(self, pump: Pump, service: Service, hurry: asyncio.Event) -> None:
        try:
            if not await service.ends_within(self.patience, unless=hurry):
                why = "is stopped at once" if hurry.is_set() else f"did not end in {self.patience:.0f} s"
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
            except Exception as error:  # noqa: BLE001 - their leases end by themselves
                message = "%s could not give its messages back"
                self._store.errors.log(logging.ERROR, message, service.name, error=error)

    async def _stop_hooks(self, begun: int) -> None:
        # A hook on stop belongs to what was begun: it runs even where its counterpart on start failed.
        hooks = self.on_stop if begun == len(self.on_start) else self.on_stop[:begun]
        for hook in reversed(hooks):
            try:
                await _call(hook)
            except Exception as error:  # noqa: BLE001 - the others must run too
                message = "store=%s a hook failed on stop"
                self._store.errors.log(logging.ERROR, message, self._store.name, error=error)

    def wake(self, event: Event) -> None:
        """An observer: what this process puts, its pumps need not wait for."""
        running = self._crews.get().running.get(event.box.key)
        if running is None or event.error is not None:
            return
        running.pump.wake()
        if event.verb == "put":
            now = datetime.now(UTC)
            for due in {draft.due for draft in event.given if draft.due is not None and draft.due > now}:
                running.pump.expect((due - now).total_seconds())

    async def _listen(self) -> None:
        """What other processes have put, the pumps need not wait for either."""
        running = self._crews.get().running
        while True:
            check_cancelled()
            keys = await self._store.wait()
            for key, (pump, _) in running.items():
                if not keys or key in keys:
                    pump.wake()

    def _is_overdue(self, key: str) -> bool:
        running = self._crews.get().running.get(key)
        return running is not None and running.pump.is_overdue

    def runs(self, key: str) -> bool:
        """In whatever event loop of this process."""
        return any(key in crew.running and crew.running[key].service.is_running for crew in self._crews.everywhere())

    def health(self) -> dict[str, BoxHealth]:
        return {
            key: BoxHealth(service.is_running, pump.in_hand, pump.handled, pump.last_error)
            for crew in self._crews.everywhere()
            for key, (pump, service) in crew.running.items()
        }

    async def drain(self, boxes: Iterable[Any], *, raise_errors: bool = False) -> int:
        """Handle all that is ready now, without starting anything; returns how many messages were claimed."""
        self._check_open()
        total = 0
        errors: dict[int, BaseException] = {}
        while True:
            claimed = 0
            for box in [box for box in boxes if len(box.handlers)]:
                pump = Pump(self._store, box.box, box.handlers, topics=box.claimed_topics)
                claimed += await pump.drain()
                errors |= pump.errors
            total += claimed
            if not claimed:
                break
        if raise_errors and errors:
            raise_all(list(errors.values()))
        return total


def raise_all(errors: list[BaseException]) -> NoReturn:
    """A single error as it is, so that a test can expect it by its type; several as a group."""
    if len(errors) == 1:
        raise errors[0]
    raise BaseExceptionGroup("handlers failed", errors)  # an ExceptionGroup, where all are Exceptions


async def _call(hook: Hook) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result
