"""The room: one database, and the boxes in it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack

from postroom._connect import Colour, observe, open_store
from postroom._faces import check
from postroom._faces.inbox import Inbox, SyncInbox
from postroom._faces.options import BoxOptions, make_box
from postroom._faces.outbox import Outbox, SyncOutbox
from postroom._kernel.clock import Clock
from postroom._kernel.observer import Event, Observer, hears
from postroom._kernel.policy import Box
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.queries import Filter
from postroom._kernel.retry import StorageRetry
from postroom._kernel.states import BoxKind
from postroom._kernel.texts import Redact
from postroom._runtime.janitor import Cleaned, Cleaning, Janitor
from postroom._runtime.probes import Probes
from postroom._runtime.signals import Signals
from postroom._runtime.supervisor import WAKING, BoxHealth, Supervisor
from postroom._runtime.systemd import Notifier
from postroom._stores import journal
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, SchemaError
from postroom.spi import Features, Schema

_log = logging.getLogger("postroom")

NOTHING = Filter(ids=(0,), limit=1)
"""No message has this id. To look for it shows whether the store works, and costs the same however much it holds."""

H = TypeVar("H", bound=Callable[[], Any])


class RoomOptions(TypedDict, total=False):
    """What can be said of a room, beside its URL."""

    store: Any
    prefix: str
    schema: str | None
    pool: Any
    notify: bool
    deploy_schema: bool
    require_durable: bool
    observers: Sequence[Observer]
    storage_retry: StorageRetry | None
    redact: Redact | None
    clock: Clock | None


class RoomVerbs:
    """What a room can do, in both colours."""

    _colour: ClassVar[Colour]

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Any = None,
        prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        pool: Any = None,
        notify: bool = True,
        deploy_schema: bool = False,
        require_durable: bool = False,
        observers: Sequence[Observer] = (),
        storage_retry: StorageRetry | None = None,
        redact: Redact | None = None,
        clock: Clock | None = None,
    ) -> None:
        """A room on the database at `url` (POSTROOM_URL by default), or on a store of your own.

        `prefix` begins the names of all tables; `schema` is the database schema that they are in. `pool` is where
        connections come from: a pool of the driver's, or a SQLAlchemy engine, whose connections handlers then get too.
        `notify=False` leaves workers to polling. `deploy_schema` makes missing tables on first use; otherwise call
        `migrate()` once, when you deploy. `require_durable` refuses a store that may forget what it has accepted; of
        a Redis without it, that is a warning. `storage_retry` says how to meet errors that pass by themselves, such
        as a busy database. `redact` is called with every error text before it is stored or logged, and returns what
        may be. `clock` is for tests.
        """
        if store is None:
            store = open_store(
                url,
                colour=self._colour,
                prefix=prefix,
                schema=schema,
                pool=pool,
                notify=notify,
                deploy_schema=deploy_schema,
                require_durable=require_durable,
                clock=clock,
            )
        elif url is not None:
            raise ArgumentValueError("pass a url or a store, not both")
        if require_durable and not store.features.durable:
            raise FeatureMissing(
                f"{store.name} keeps nothing when its process ends, and require_durable is set: use a file or a server"
            )
        self.store = observe(store, (journal.write, *observers), storage_retry or StorageRetry(), self._colour, redact)
        self._boxes: dict[str, tuple[Any, Any]] = {}

    @property
    def features(self) -> Features:
        return self.store.features

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store.name}>"

    def _make(self, kind: BoxKind, name: str, options: BoxOptions, face: Any) -> Any:
        """The box of this name: made once, then the same object again."""
        box: Box = make_box(kind, name, self.features, options)
        made = self._boxes.get(box.key)
        if made is None:
            self._boxes[box.key] = made = (face(box, self.store), options)
        elif options not in ({}, made[1]):
            raise ArgumentValueError(
                f"{kind} {name!r} was made with other options: say them once, then call {kind}({name!r}) alone"
            )
        return made[0]

    @verb
    def migrate(self) -> Program[list[int]]:
        """Make or update the tables; answers the versions that were applied. Safe to repeat, and to run everywhere."""
        return [] if not self._has_schema() else (yield call(self.store.migrate))

    def schema_script(self) -> str:
        """The tables as SQL text, for those who deploy schemas in their own way."""
        if not self._has_schema():
            raise FeatureMissing(f"{self.store.name} has no tables")
        return str(self.store.schema_script())

    def _has_schema(self) -> bool:
        return isinstance(self.store.store, Schema)


# Both rooms pass their options on to it, and its name is in the error of one that does not exist.
RoomVerbs.__init__.__qualname__ = "Postroom.__init__"


class Postroom(RoomVerbs, Async, public="postroom.Postroom"):
    """A database with boxes in it, and the workers that handle their messages, for async code."""

    _colour = "async"

    def __init__(
        self,
        url: str | None = None,
        *,
        cleaning: Cleaning | None = None,
        shutdown_timeout: timedelta = timedelta(seconds=30),
        **options: Unpack[RoomOptions],
    ) -> None:
        """As for sync code; and how to clean up, and how long a stop waits for handlers.

        A room that is given `cleaning` cleans its boxes while it runs even if it has no handlers.
        """
        options["observers"] = (*options.get("observers", ()), self._wake)
        super().__init__(url, **options)
        self._janitor = Janitor(cleaning or Cleaning())
        self._supervisor = Supervisor(
            self.store,
            self._janitor,
            shutdown_timeout=check.duration("shutdown_timeout", shutdown_timeout, zero=True),
            cleans_alone=cleaning is not None,
        )

    @hears(*WAKING)
    def _wake(self, event: Event) -> None:
        self._supervisor.wake(event)

    def inbox(self, name: str = "inbox", **options: Unpack[BoxOptions]) -> Inbox:
        inbox: Inbox = self._make("inbox", name, options, Inbox)
        inbox.supervisor = self._supervisor
        return inbox

    def outbox(self, name: str = "outbox", **options: Unpack[BoxOptions]) -> Outbox:
        outbox: Outbox = self._make("outbox", name, options, Outbox)
        outbox.supervisor = self._supervisor
        return outbox

    # -- the life of its workers ---------------------------------------------------------------------------------

    def on_start(self, hook: H) -> H:
        """Call this function, plain or async, when the room starts: in the order in which they were given."""
        self._supervisor.on_start.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Call this function when the room has stopped: in reverse order."""
        self._supervisor.on_stop.append(hook)
        return hook

    @property
    def is_running(self) -> bool:
        return self._supervisor.is_running

    async def start(self, boxes: Iterable[Inbox | Outbox] | None = None) -> None:
        """Start a worker for every box that has handlers. A room without handlers only writes, and starts none.

        With `boxes`, only these are started and cleaned; a later call starts others. A room that runs starts those of
        boxes which have got their handlers since.
        """
        chosen = self._choose(boxes)
        if self._supervisor.has_more_to_start(chosen):
            await self._supervisor.start(chosen, self._check_schema)

    def _choose(self, boxes: Any) -> list[Any]:
        """The boxes to start. One that is named but cannot be started is an error."""
        if boxes is None:
            return self.boxes
        if isinstance(boxes, str) or not isinstance(boxes, Iterable):
            raise ArgumentTypeError(f"boxes must be a list of inboxes and outboxes, not {type(boxes).__name__}")
        chosen = list(boxes)
        if not chosen:
            raise ArgumentValueError("boxes must not be empty; leave it out to start all boxes")
        for face in chosen:
            if not isinstance(face, Inbox | Outbox):
                raise ArgumentTypeError(f"boxes must be a list of inboxes and outboxes, not of {type(face).__name__}")
            if not any(face is own for own in self.boxes):
                raise ArgumentValueError(f"{face.box.kind} {face.name!r} is a box of another room")
            if not len(face.handlers) and not self._supervisor.cleans_alone:
                raise ArgumentValueError(
                    f"{face.box.kind} {face.name!r} has no handlers: register one, or leave this box out"
                )
        return chosen

    async def _check_schema(self) -> None:
        """A worker on tables that do not fit would fail for ever: better to say so at once."""
        for face in [face for face in self.boxes if len(face.handlers)]:
            try:
                await self.store.find(face.box, NOTHING)
                await self.store.check_order(face.box)
            except Exception as error:
                if isinstance(error, SchemaError) or not self.store.passes(error):
                    raise  # a wrong password, say: to wait would not help
                _log.warning("%s does not answer yet: %s", self.store.name, self.store.errors.of(error))
                return

    async def stop(self) -> None:
        """Claim no more, let handlers end, give back the rest. The room can be started again."""
        await self._supervisor.stop()

    def run(
        self,
        boxes: Iterable[Inbox | Outbox] | None = None,
        *,
        health: str | None = None,
        heartbeat: str | PathLike[str] | None = None,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Start, and go on until SIGINT or SIGTERM; then stop and close. For a worker process.

        `boxes`: only these; by default all that have handlers. `health` is HOST:PORT: an HTTP server there has the
        checks `/live` and `/ready`. `heartbeat` is a file that is touched every 5 seconds while the event loop runs.
        systemd is notified if it has set NOTIFY_SOCKET. `first` is awaited before the start, in the same event loop,
        to which pools belong.

        After a second signal, this raises KeyboardInterrupt (SIGINT), or the process ends by it (SIGTERM).
        """
        chosen = None if boxes is None else self._choose(boxes)
        if not any(len(face.handlers) for face in chosen or self.boxes) and not self._supervisor.cleans_alone:
            raise ArgumentValueError("this room has no handlers: register one, or give it cleaning=Cleaning(), first")
        probes = Probes(self.is_ready, health=health, heartbeat=heartbeat, notifier=Notifier.from_environment())
        second = asyncio.run(self._run_until_told(chosen, probes, first))
        if second is not None:
            signal.raise_signal(second)  # as its parent expects: KeyboardInterrupt, or the end of the process

    async def _run_until_told(
        self, boxes: Iterable[Inbox | Outbox] | None, probes: Probes, first: Callable[[], Awaitable[None]] | None
    ) -> int | None:
        """Returns the number of the second signal, if there was one."""
        async with probes:
            if first is not None:
                await first()
            with Signals(self._supervisor.hurry) as signals:
                await self._run_until(signals.first, boxes, probes)
            return signals.second

    async def _run_until(self, told: asyncio.Event, boxes: Iterable[Inbox | Outbox] | None, probes: Probes) -> None:
        try:
            await self.start(boxes)
            probes.started()
            await told.wait()
            probes.stopping()
            if any(box.in_hand for box in self.health().values()):
                _log.warning(
                    "stopping: handlers may end what they have begun, for up to %.0f s; a second signal stops at once "
                    "and gives their messages back",
                    self._supervisor.patience,
                )
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop, if it runs, and give back connections. Closing twice is fine."""
        self._supervisor.is_closed = True
        try:
            await self.stop()
        finally:
            await self.store.close()

    def health(self) -> dict[str, BoxHealth]:
        """How each running box is doing, by kind and name."""
        return self._supervisor.health()

    async def is_ready(self) -> bool:
        """Whether the store responds, the schema fits, every started worker runs and none is being stopped."""
        if self._supervisor.is_stopping:
            return False
        try:
            for face in self.boxes[:1] or [self.inbox()]:
                await self.store.find(face.box, NOTHING)
        except Exception:  # noqa: BLE001 - whatever it is, the room is not ready
            return False
        return all(box.running and box.last_error is None for box in self.health().values())

    async def cleanup(self, *names: str) -> dict[str, Cleaned]:
        """Reap and purge once, as the boxes' policies say: all boxes, or those of these names."""
        chosen = [face for face in self.boxes if not names or face.name in names]
        return {face.box.key: await self._janitor.clean(face) for face in chosen}

    async def drain(self, *, raise_errors: bool = False) -> int:
        """Handle all that is ready now and return how many messages were claimed: for tests and scripts.

        A handler that raises fails its message, as always. With `raise_errors` the error is raised here in the end,
        when nothing more is ready; where several messages failed, an ExceptionGroup of their last errors.
        """
        return await self._supervisor.drain(self.boxes, raise_errors=check.flag("raise_errors", raise_errors))

    @property
    def boxes(self) -> list[Any]:
        return [face for face, _ in self._boxes.values()]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SyncPostroom(RoomVerbs, Sync, public="postroom.sync.Postroom"):
    """A database with boxes in it, for sync code: `postroom.sync.Postroom`."""

    _colour = "sync"

    def inbox(self, name: str = "inbox", **options: Unpack[BoxOptions]) -> SyncInbox:
        inbox: SyncInbox = self._make("inbox", name, options, SyncInbox)
        return inbox

    def outbox(self, name: str = "outbox", **options: Unpack[BoxOptions]) -> SyncOutbox:
        outbox: SyncOutbox = self._make("outbox", name, options, SyncOutbox)
        return outbox

    def close(self) -> None:
        """Give back connections. Closing twice is fine."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
