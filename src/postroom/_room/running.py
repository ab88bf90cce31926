"""The room for async code: boxes, and the workers that call their handlers."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from postroom._boxes import check
from postroom._boxes.guard.guard import Guard
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.inbox import Inbox
from postroom._boxes.outbox import Outbox
from postroom._kernel.observer import Event, observes
from postroom._kernel.policy import Box
from postroom._kernel.program import Async
from postroom._kernel.queries import Filter
from postroom._many.config import DEFAULT_LOOK_INTERVAL, StoreMigrated
from postroom._many.selection import Selection, selection_of
from postroom._room.base import RoomVerbs
from postroom._room.options import RoomOptions
from postroom._runtime.values import BoxHealth, Cleaned, Cleaning
from postroom.errors import ArgumentTypeError, ArgumentValueError, SchemaError

if TYPE_CHECKING:  # not at run time: asyncio and the runtime are imported with the first room
    import asyncio

    from postroom._boxes.handled_box import HandledBox
    from postroom._many.hubs import Hubs
    from postroom._many.router import AsyncRouter
    from postroom._many.tenants import Tenants
    from postroom._runtime.health_reporter import HealthReporter
    from postroom._runtime.worker import WorkerSource

_log = logging.getLogger("postroom")

NO_MESSAGE = Filter(ids=(0,), limit=1)
"""Finds nothing, since no message has the id 0: a cheap check that the store responds and the tables fit."""

H = TypeVar("H", bound=Callable[[], object])


class Postroom(RoomVerbs[Inbox, Outbox, Guard, "AsyncRouter"], Async, public="postroom.Postroom"):
    """A database with inboxes and outboxes, and the workers that handle their messages, for async code.

    `async with room:` starts the workers of all boxes that have handlers, and stops them at the end. `room.run()` does
    the same for a worker process. A program that only enqueues starts nothing, and calls `close()` at its end.
    """

    _mode = "async"

    def __init__(
        self,
        url: str | None = None,
        *,
        cleaning: Cleaning | None = None,
        shutdown_timeout: timedelta = timedelta(seconds=30),
        selection: str | Selection = "round-robin",
        look_interval: timedelta | None = DEFAULT_LOOK_INTERVAL,
        hub: str | None = None,
        **options: Unpack[RoomOptions],
    ) -> None:
        """Makes a room. It connects when its first verb is called.

        Args:
            url: `sqlite:///shop.db`, `postgresql://…`, `redis://…`, `http://…`, `memory://`. Default: POSTROOM_URL.
            cleaning: how a running room cleans its boxes; if given, also without handlers. Default: `Cleaning()`.
            shutdown_timeout: how long a stop waits for handlers. Default: 30 seconds.
            selection: which of many stores is next: `"round-robin"`, `"drain-first"`, `"fair"`, or a `Selection`.
            look_interval: how long one of many stores is left alone without a hint. None: for ever. Default: 2 minutes.
            hub: many stores: the URL of a PostgreSQL database or a Redis server by which processes hint at new messages
                to each other, at once. Give it to all processes. Rooms of `postroom.sync` send no hints. Default: none.
            store: a store of your own, in place of a URL.
            stores: many databases in place of one: URLs or `StoreConfig`s by identifier. See `router`.
            discover: a function that returns `stores`; it is called again to refresh them. Default: none.
            refresh: the pause between two calls of `discover`. Default: 5 minutes.
            open_stores: how many of the `stores` may be open on one server at the same time. Default: 20.
            prefix: how the names of tables, or of keys in Redis, begin. Default: `"postroom_"`; for Redis `"postroom"`.
            schema: PostgreSQL: the schema of the tables. Default: as `search_path` has it.
            pool: a pool of the driver, a SQLAlchemy engine or a Redis client to take connections from. Default: none.
            notify: whether other processes wake the workers of this one; False: they poll. Default: True.
            deploy_schema: whether the first verb makes missing tables; False: call `migrate()`. Default: False.
            require_durable: whether to refuse a store that may lose accepted messages. Default: False.
            observers: functions that get an `Event` after each verb of the store. Default: none.
            storage_retry: how to retry transient errors of the store. Default: `StorageRetry()`.
            redact: returns an error text without what must not be stored or logged. Default: none.
            clock: a clock for tests, such as `postroom.testing.FrozenClock`. Default: that of the store.
            token: the token for a service, whose URL is `http://…` or `https://…`. Default: POSTROOM_TOKEN.

        Raises:
            ArgumentTypeError, ArgumentValueError: no URL, an unknown scheme, or both a URL and a store.
            FeatureMissing: `require_durable`, and the store is in memory.
            ExtraMissing: the driver of the URL is not installed.
        """
        from postroom._runtime.store_workers import StoreWorkers
        from postroom._runtime.supervisor import Supervisor

        options["observers"] = (*options.get("observers", ()), self._wake)
        super().__init__(url, **options)
        self._handled: dict[str, HandledBox] = {}
        chosen = selection_of(selection)
        look = check.optional_duration("look_interval", look_interval)
        self._hubs: Hubs | None = None
        if self._tenants is None:
            if hub is not None:
                raise ArgumentTypeError("hub needs stores or discover: a room with one store has its notifications")
            self._source: WorkerSource[Any] = StoreWorkers(self._store, cleaning or Cleaning())
        else:
            from postroom._many.hubs import Hubs
            from postroom._many.workers import TenantWorkers

            self._hubs = None if hub is None else Hubs(hub)
            self._source = TenantWorkers(
                self._tenants,
                boxes=self._handled.values,
                selection=chosen,
                cleaning=cleaning or Cleaning(),
                probes=check.flag("notify", options.get("notify", True)),
                look_seconds=math.inf if look is None else look.total_seconds(),
                hubs=self._hubs,
            )
        self._supervisor: Supervisor[Any] = Supervisor(
            self._source,
            shutdown_timeout=check.duration("shutdown_timeout", shutdown_timeout, zero=True),
            cleans_without_handlers=cleaning is not None,
        )

    def _make_router(self, tenants: Tenants) -> AsyncRouter:
        from postroom._many.router import AsyncRouter

        return AsyncRouter(tenants, self._find_box)

    def _make_inbox(self, box: Box) -> Inbox:
        return Inbox(self._handle(box), self._store, self._supervisor)

    def _make_outbox(self, box: Box) -> Outbox:
        return Outbox(self._handle(box), self._store, self._supervisor)

    def _make_guard(self, box: Box, policy: GuardPolicy) -> Guard:
        self._handle(box)  # it has no handlers here, and is cleaned
        return Guard(box, policy, self._store)

    def _handle(self, box: Box) -> HandledBox:
        from postroom._boxes.handled_box import HandledBox

        self._handled[box.key] = handled = HandledBox(box, self._store)
        return handled

    @observes("put", "replay", "mark", "cancel", "put_wait", "attach_steps", "report_step", "seal_join", "cancel_join")
    def _wake(self, event: Event) -> None:
        """Wakes workers after a verb that may have made a message claimable: here, and by the hub elsewhere."""
        self._supervisor.wake(event)
        if self._hubs is not None:
            self._hubs.publish(event)

    async def migrate_stores(
        self, *, parallel: int = 4, progress: Callable[[StoreMigrated], object] | None = None
    ) -> list[StoreMigrated]:
        """Makes or updates the tables of all stores. An error of one store does not end the others.

        Args:
            parallel: how many stores of one server are migrated at the same time. Default: 4.
            progress: called after each store. Default: none.

        Returns:
            A `StoreMigrated` for each store, in the order of the stores.

        Raises:
            FeatureMissing: the room has one store: use `migrate()`.
        """
        from postroom._many.migration import migrate_all

        router = self.router
        await self.refresh()
        return await migrate_all(router, parallel, progress)

    @property
    def boxes(self) -> list[Inbox | Outbox]:
        """The boxes that were made so far."""
        return [box for opened in self._opened.values() if isinstance(box := opened.public, Inbox | Outbox)]

    @property
    def is_running(self) -> bool:
        """True between `start()` and `stop()`, in any event loop of this process."""
        return self._supervisor.is_running

    def on_start(self, hook: H) -> H:
        """Registers a function that `start()` calls before the workers start. Use it as a decorator.

        Hooks are called in the order of registration. If one raises, the start is undone and raises too. The tables are
        checked after the hooks, so `room.on_start(room.migrate)` works.

        Args:
            hook: a function without parameters, plain or async.

        Returns:
            The function itself.
        """
        self._supervisor.on_start.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Registers a function that `stop()` calls after the workers have stopped. Use it as a decorator.

        Hooks are called in reverse order of registration. Their errors are logged.

        Args:
            hook: a function without parameters, plain or async.

        Returns:
            The function itself.
        """
        self._supervisor.on_stop.append(hook)
        return hook

    async def start(self, boxes: Iterable[Inbox | Outbox] | None = None) -> None:
        """Starts a worker for every box that has handlers, and the cleaning, in this event loop.

        In a room that runs, it starts the workers of boxes that have got handlers since. Without handlers it starts
        none.

        Args:
            boxes: only these boxes are started and cleaned; a later call can start others. None: all boxes.

        Raises:
            ArgumentTypeError, ArgumentValueError: a box of another room, or one without handlers.
            SchemaMissing, SchemaOutdated, SchemaTooNew: the tables do not fit.
            OrderMismatch: a box has another order in the store.
            RoomClosed: the room is closed.
        """
        await self._start(self._choose(boxes))

    async def _start(self, boxes: list[HandledBox]) -> None:
        if self._supervisor.has_more_to_start(boxes):
            await self._supervisor.start(boxes, self._check_schema)

    def _choose(self, boxes: Iterable[Inbox | Outbox] | None) -> list[HandledBox]:
        """Returns the boxes to start. Raises for a named box that cannot be started."""
        if boxes is None:
            return list(self._handled.values())
        given: object = boxes
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ArgumentTypeError(f"boxes must be a list of inboxes and outboxes, not {type(given).__name__}")
        chosen = list(boxes)
        if not chosen:
            raise ArgumentValueError("boxes must not be empty; leave it out to start all boxes")
        for each in chosen:
            if not isinstance(each, Inbox | Outbox):
                raise ArgumentTypeError(f"boxes must be a list of inboxes and outboxes, not of {type(each).__name__}")
            if not any(each is own for own in self.boxes):
                raise ArgumentValueError(f"{each.box.kind} {each.name!r} is a box of another room")
            if not each.topics and not self._supervisor.cleans_without_handlers:
                raise ArgumentValueError(
                    f"{each.box.kind} {each.name!r} has no handlers: register one, or leave this box out"
                )
        return [self._handled[each.box.key] for each in chosen]

    async def _check_schema(self) -> None:
        """Raises if the tables do not fit: a worker on them would fail again and again.

        With many stores, reads their list: each store is checked when it is first looked at.
        """
        if self._tenants is not None:
            await self.refresh()
            return
        for handled in [each for each in self._handled.values() if len(each.handlers)]:
            try:
                await self._store.find(handled.box, NO_MESSAGE)
                await self._store.check_order(handled.box)
            except Exception as error:
                if isinstance(error, SchemaError) or not self._store.is_transient(error):
                    raise  # a wrong password, for instance: a retry would not help
                _log.warning("%s does not respond yet: %s", self._store.name, self._store.errors.of(error))
                return

    async def stop(self) -> None:
        """Stops claiming, waits for handlers up to `shutdown_timeout`, and releases the other messages uncounted.

        Then it calls the hooks of `on_stop`. The room can be started again, also in another event loop.
        """
        await self._supervisor.stop()

    def run(
        self,
        boxes: Iterable[Inbox | Outbox] | None = None,
        *,
        health: str | None = None,
        heartbeat: str | PathLike[str] | None = None,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Runs a worker process: starts, waits for SIGINT or SIGTERM, stops and closes the room. Not awaited.

        A second signal ends the wait for handlers and releases their messages. Then `run` raises KeyboardInterrupt
        (SIGINT), or the process ends by the signal (SIGTERM). systemd is notified if it has set NOTIFY_SOCKET.

        Args:
            boxes: only these boxes. None: all that have handlers.
            health: `HOST:PORT` of an HTTP server with the checks `/live` and `/ready`. None: no server.
            heartbeat: a file that is touched every 5 seconds while the event loop runs. None: no file.
            first: an async function that is awaited before the start, in the same event loop.

        Raises:
            ArgumentTypeError, ArgumentValueError: no box has a handler, a bad `health`, or as for `start`.
            SchemaError: the tables do not fit.
        """
        import asyncio
        import signal

        from postroom._runtime.health_reporter import HealthReporter
        from postroom._runtime.systemd import Notifier

        chosen = self._choose(boxes)
        if not any(len(each.handlers) for each in chosen) and not self._supervisor.cleans_without_handlers:
            raise ArgumentValueError("this room has no handlers: register one, or give it cleaning=Cleaning(), first")
        reporter = HealthReporter(
            self.is_ready, health=health, heartbeat=heartbeat, notifier=Notifier.from_environment()
        )
        second = asyncio.run(self._run_until_signal(None if boxes is None else chosen, reporter, first))
        if second is not None:
            signal.raise_signal(second)  # as its parent expects: KeyboardInterrupt, or the end of the process

    async def _run_until_signal(
        self, boxes: list[HandledBox] | None, reporter: HealthReporter, first: Callable[[], Awaitable[None]] | None
    ) -> int | None:
        """Returns the number of the second signal; None if there was only one."""
        from postroom._runtime.signals import Signals

        async with reporter:
            if first is not None:
                await first()
            with Signals(self._supervisor.stop_at_once) as signals:
                await self._run_until(signals.first, boxes, reporter)
            return signals.second

    async def _run_until(self, stop: asyncio.Event, boxes: list[HandledBox] | None, reporter: HealthReporter) -> None:
        try:
            await self._start(self._choose(None) if boxes is None else boxes)
            reporter.started()
            await stop.wait()
            reporter.stopping()
            if any(box.in_hand for box in self.health().values()):
                _log.warning(
                    "stopping: handlers may end what they have begun, for up to %.0f s; a second signal stops at once "
                    "and gives their messages back",
                    self._supervisor.shutdown_seconds,
                )
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops the room if it runs, and closes connections. Closing twice does nothing."""
        self._supervisor.is_closed = True
        try:
            await self.stop()
        finally:
            if self._hubs is not None:
                await self._hubs.close()
            await self._close_stores()

    async def _close_stores(self) -> None:
        if self._tenants is None:
            await self._store.close()
        elif (closing := self._tenants.stores.close_all()) is not None:
            await closing

    def health(self) -> dict[str, BoxHealth]:
        """Returns the health of each box that runs. Not awaited.

        Returns:
            A `BoxHealth` by kind and name of the box, such as `"inbox:inbox"`.
        """
        return self._supervisor.health()

    async def is_ready(self) -> bool:
        """Returns True if the store responds, the tables fit, and every started worker runs without an error.

        Returns:
            False while the room stops, and after any error. With many stores, the error of one store does not matter.
        """
        if self._supervisor.is_stopping:
            return False
        try:
            for each in (self.boxes[:1] or [self.inbox()]) if self._tenants is None else []:
                box = each.box if self.features.claims else Box("guard", each.name)
                await self._store.find(box, NO_MESSAGE)
        except Exception:  # noqa: BLE001 - after any error, the room is not ready
            return False
        return all(box.running and box.last_error is None for box in self.health().values())

    async def cleanup(self, *names: str) -> dict[str, Cleaned]:
        """Reaps and purges once, as the policies of the boxes have it, until nothing is left to do.

        Args:
            *names: only the boxes of these `names`. Without any: all boxes.

        Returns:
            A `Cleaned` by kind and name of the box.
        """
        chosen = [each for each in self._handled.values() if not names or each.name in names]
        return {each.box.key: await self._source.clean(each) for each in chosen}

    async def drain(self, *, raise_errors: bool = False) -> int:
        """Handles all messages that are ready now, in all boxes with handlers. For tests and scripts.

        Args:
            raise_errors: whether to raise the errors of handlers in the end. Each of them has failed its message, as in
                a worker.

        Returns:
            How many messages were claimed.

        Raises:
            Exception: with `raise_errors`, the error of a handler; an ExceptionGroup if several messages failed.
            RoomClosed: the room is closed.
        """
        if self._tenants is not None:
            await self.refresh()
        return await self._supervisor.drain(
            self._handled.values(), raise_errors=check.flag("raise_errors", raise_errors)
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
