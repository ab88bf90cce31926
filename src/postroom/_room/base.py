"""What rooms of both modes have: the store, the boxes, the schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, Unpack, cast

from postroom._boxes.guard.options import GuardOptions, GuardPolicy, make_guard_box
from postroom._boxes.options import BoxOptions, make_box
from postroom._connect import open_store
from postroom._kernel.clock import Clock
from postroom._kernel.observer import Observer
from postroom._kernel.policy import Box
from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._kernel.program import Mode, Program, call, verb
from postroom._kernel.retry import StorageRetry
from postroom._kernel.states import BoxKind
from postroom._kernel.texts import Redact
from postroom._many.config import DEFAULT_OPEN_STORES, Discover, StoreConfigs
from postroom._room_store import WorkerStore
from postroom._stores.event_log import log_event
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, StoreKeyMissing
from postroom.spi import Features, Migrator

if TYPE_CHECKING:  # not at run time: it imports asyncio
    from postroom._many.tenants import Tenants

InboxT = TypeVar("InboxT")
OutboxT = TypeVar("OutboxT")
GuardT = TypeVar("GuardT")
RouterT = TypeVar("RouterT")
BoxT = TypeVar("BoxT")


ONE_STORE = "this room has one store: use room.inbox() and room.outbox(), or make it with stores="


class OpenedBox(NamedTuple):
    """A box that a room has made, and the options that it was made with."""

    public: Any
    """The inbox, outbox or guard of the user."""
    options: BoxOptions | GuardOptions


class RoomVerbs(Generic[InboxT, OutboxT, GuardT, RouterT]):
    """A room in either mode."""

    _mode: ClassVar[Mode]
    _make_inbox: Callable[[Box], InboxT]
    _make_outbox: Callable[[Box], OutboxT]
    _make_guard: Callable[[Box, GuardPolicy], GuardT]
    _make_router: Callable[[Tenants], RouterT]

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Any = None,
        stores: StoreConfigs | None = None,
        discover: Discover | None = None,
        refresh: timedelta | None = None,
        open_stores: int = DEFAULT_OPEN_STORES,
        prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        pool: object = None,
        notify: bool = True,
        deploy_schema: bool = False,
        require_durable: bool = False,
        observers: Sequence[Observer] = (),
        storage_retry: StorageRetry | None = None,
        redact: Redact | None = None,
        clock: Clock | None = None,
        token: str | None = None,
    ) -> None:
        """Makes a room. It connects when its first verb is called.

        Args:
            url: `sqlite:///shop.db`, `postgresql://…`, `redis://…`, `http://…`, `memory://`. Default: POSTROOM_URL.
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
        self._tenants: Tenants | None = None
        self._router: RouterT | None = None
        self._opened: dict[str, OpenedBox] = {}
        observers, retry = (log_event, *observers), storage_retry or StorageRetry()
        if stores is not None or discover is not None:
            _refuse_besides_stores(
                url=url,
                store=store,
                pool=pool,
                schema=schema,
                token=token,
                prefix=None if prefix == DEFAULT_PREFIX else prefix,
            )
            from postroom._many.routed import UnroutedStore  # which imports asyncio
            from postroom._many.tenants import StoreDefaults, Tenants

            defaults = StoreDefaults(
                self._mode, notify, deploy_schema, require_durable, observers, retry, redact, clock
            )
            self._tenants = Tenants(defaults, stores, discover, refresh, open_stores)
            self._store: WorkerStore = cast("WorkerStore", UnroutedStore(self._tenants.errors))
            self._router = self._make_router(self._tenants)
            return
        if refresh is not None:
            raise ArgumentTypeError("refresh needs discover: a room with one store has no list to refresh")
        if store is None:
            store = open_store(
                url,
                mode=self._mode,
                prefix=prefix,
                schema=schema,
                pool=pool,
                notify=notify,
                deploy_schema=deploy_schema,
                require_durable=require_durable,
                clock=clock,
                token=token,
            )
        elif url is not None:
            raise ArgumentValueError("pass a url or a store, not both")
        if require_durable and not store.features.durable:
            raise FeatureMissing(
                f"{store.name} keeps nothing when its process ends, and require_durable is set: use a file or a server"
            )
        from postroom._stores.for_room import wrap_for_room  # which imports asyncio

        self._store = wrap_for_room(store, self._mode, observers, retry, redact)

    @property
    def store(self) -> Any:
        """The store, with the verbs of `postroom.spi.Store` in the mode of the room, and a `transaction()`."""
        return self._store

    @property
    def features(self) -> Features:
        """What the store offers: a `postroom.spi.Features`."""
        return self._store.features

    @property
    def router(self) -> RouterT:
        """Finds the boxes of one store by its identifier, in a room with many stores.

        Raises:
            FeatureMissing: the room has one store.
        """
        if self._router is None:
            raise FeatureMissing(ONE_STORE)
        return self._router

    @verb
    def refresh(self) -> Program[None]:
        """Calls `discover` now, and makes its result the list of stores. Does nothing with a fixed list.

        Raises:
            Exception: the first call raises what `discover` raises. Later calls log it and keep the list.
        """
        if self._tenants is not None:
            yield from self._tenants.refresh()

    def _find_box(self, kind: BoxKind, name: str) -> Any:
        """Returns the box of this name, for the router."""
        if kind == "guard":
            return self.guard(name)
        return self.inbox(name) if kind == "inbox" else self.outbox(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._store.name}>"

    def inbox(self, name: str = "inbox", **options: Unpack[BoxOptions]) -> InboxT:
        """Returns the inbox of this name. It is made once; options are given with the first call only.

        Args:
            name: the name of the inbox. Default: `"inbox"`.
            order: `"fifo"`: the messages of a group are handled one after the other. Default: `"none"`.
            change_order: whether `order` replaces the one that the store has recorded. Default: False.
            on_dead: FIFO: `"block"`: a dead message holds its group. Default: `"unblock"`.
            max_attempts: counted executions before a message is dead. Default: 10.
            backoff: the delay after a failed attempt. Default: `Backoff.exponential()`, 2 to 60 seconds.
            max_deliveries: claims before a message is dead, with any outcome. Default: None, no limit.
            max_lost_leases: leases in a row without an outcome before a message is dead. Default: 10.
            lifetime: how long a message without `expires` may wait; then it is dead. Default: None, no limit.
            on_stale_ack: `"requeue"`: content that changed while it was handled is handled again. Default: `"done"`.
            dedup_window: how long a key is recognised. Default: None, until its message is purged.
            on_duplicate: for a known key: `"update"`, `"reject"` or `"raise"`. Default: see `enqueue`.
            retention: the age at which `purge()` deletes done messages. Default: 30 days.
            retention_from: `"last_seen"` or `"completed_at"`, from which this age counts. Default: `"last_seen"`.
            dead_retention: the age at which `purge()` deletes dead letters. Default: None, never.
            on_success: `"delete"`: an ack deletes payload and headers; the key stays. Default: `"keep"`.
            dead_letter: `"discard"`: a message that dies is done, without its content. Default: `"keep"`.
            write_batch_size: messages in one step of `enqueue_many` on Redis and memory. Default: 1000.
            batch_size: messages that a worker claims at once. Default: 50.
            lease_seconds: how long a claim of a worker holds. Default: 30.
            lease_renewal: the part of a lease after which a worker renews it: 0.1 to 0.9, or False. Default: True, 0.5.
            concurrency: handler calls that run at the same time in one process. Default: 1.
            poll_interval: the first pause after a claim that found nothing; it doubles. Default: 0.5 seconds.
            max_poll_interval: the longest such pause. Default: 5 seconds.
            read_delay: the pause after each claim. Default: 0.
            handler_timeout: how long a handler call may take; then it has failed. Default: None, no limit.
            on_unhandled: for a topic without a handler: `"abandon"`, `"release"` or `"dead"`. Default: `"abandon"`.
            on_undecodable: for a payload that does not fit the type: `"failed"` or `"dead"`. Default: `"failed"`.
            only_handled: whether workers claim only topics that have a handler here. Default: False.

        Returns:
            The inbox: the same object at each call.

        Raises:
            ArgumentTypeError, ArgumentValueError: an unknown or bad option, or other options than before.
            FeatureMissing: the store cannot do what an option needs.
        """
        box = make_box("inbox", name, self.features, options)
        return self._open(box, options, lambda: self._make_inbox(box))

    def outbox(self, name: str = "outbox", **options: Unpack[BoxOptions]) -> OutboxT:
        """Returns the outbox of this name. It is made once; options are given with the first call only.

        An inbox and an outbox of one name are different boxes.

        Args:
            name: the name of the outbox. Default: `"outbox"`.
            order: `"fifo"`: the messages of a group are handled one after the other. Default: `"none"`.
            change_order: whether `order` replaces the one that the store has recorded. Default: False.
            on_dead: FIFO: `"block"`: a dead message holds its group. Default: `"unblock"`.
            max_attempts: counted executions before a message is dead. Default: 10.
            backoff: the delay after a failed attempt. Default: `Backoff.exponential()`, 2 to 60 seconds.
            max_deliveries: claims before a message is dead, with any outcome. Default: None, no limit.
            max_lost_leases: leases in a row without an outcome before a message is dead. Default: 10.
            lifetime: how long a message without `expires` may wait; then it is dead. Default: None, no limit.
            on_stale_ack: `"requeue"`: content that changed while it was handled is handled again. Default: `"done"`.
            dedup_window: how long a key is recognised. Default: None, until its message is purged.
            on_duplicate: for a known key: `"update"`, `"reject"` or `"raise"`. Default: see `enqueue`.
            retention: the age at which `purge()` deletes done messages. Default: 30 days.
            retention_from: `"last_seen"` or `"completed_at"`, from which this age counts. Default: `"completed_at"`.
            dead_retention: the age at which `purge()` deletes dead letters. Default: None, never.
            on_success: `"delete"`: an ack deletes payload and headers; the key stays. Default: `"keep"`.
            dead_letter: `"discard"`: a message that dies is done, without its content. Default: `"keep"`.
            write_batch_size: messages in one step of `enqueue_many` on Redis and memory. Default: 1000.
            batch_size: messages that a worker claims at once. Default: 50.
            lease_seconds: how long a claim of a worker holds. Default: 30.
            lease_renewal: the part of a lease after which a worker renews it: 0.1 to 0.9, or False. Default: True, 0.5.
            concurrency: handler calls that run at the same time in one process. Default: 1.
            poll_interval: the first pause after a claim that found nothing; it doubles. Default: 0.5 seconds.
            max_poll_interval: the longest such pause. Default: 5 seconds.
            read_delay: the pause after each claim. Default: 0.
            handler_timeout: how long a handler call may take; then it has failed. Default: None, no limit.
            on_unhandled: for a topic without a handler: `"abandon"`, `"release"` or `"dead"`. Default: `"abandon"`.
            on_undecodable: for a payload that does not fit the type: `"failed"` or `"dead"`. Default: `"failed"`.
            only_handled: whether workers claim only topics that have a handler here. Default: False.

        Returns:
            The outbox: the same object at each call.

        Raises:
            ArgumentTypeError, ArgumentValueError: an unknown or bad option, or other options than before.
            FeatureMissing: the store cannot do what an option needs.
        """
        box = make_box("outbox", name, self.features, options)
        return self._open(box, options, lambda: self._make_outbox(box))

    def guard(self, name: str, **options: Unpack[GuardOptions]) -> GuardT:
        """Returns the guard of this name. It is made once; options are given with the first call only.

        Args:
            name: the name of the guard.
            mode: `"lease"`, `"mark_before"`, `"mark_after"` or `"transactional"`. Default: `"lease"`.
            scope: `"message"`: a message is handled once, by one handler. Default: `"handler"`, once by each handler.
            lease_seconds: how long a lease lasts. Default: 30.
            lease_renewal: the part of a lease after which it is renewed: 0.1 to 0.9, or False. Default: True, 0.5.
            release_on_error: `"mark_before"`: an error of the handler releases the key. Default: False, it is dead.
            dead_on: exception classes that make a record dead in every mode. Default: none.
            wait: how long to wait while another caller has the key. Default: None, not at all.
            keep_results: whether a duplicate returns what the handler returned. Default: False.
            max_result_size: the largest result that is kept, in bytes. Default: 65,536.
            completion_timeout: how long the outcome of a handler may take to be stored. Default: 10 seconds.
            retention: the age at which `purge()` deletes processed keys. Default: 7 days.
            dead_retention: the age at which `purge()` deletes dead records; None: never. Default: as `retention`.
            cleanup_interval: the pause between two purges in a running room. Default: 1 hour.
            enabled: False: handlers run, and nothing is recorded. Default: True.

        Returns:
            The guard: the same object at each call.

        Raises:
            ArgumentTypeError, ArgumentValueError: an unknown or bad option, or other options than before.
            FeatureMissing: the store cannot do what an option needs.
        """
        box, policy = make_guard_box(name, self.features, options)
        return self._open(box, options, lambda: self._make_guard(box, policy))

    def _open(self, box: Box, options: BoxOptions | GuardOptions, make: Callable[[], BoxT]) -> BoxT:
        """Returns the box of this name; the first call makes it."""
        opened = self._opened.get(box.key)
        if opened is None:
            self._opened[box.key] = opened = OpenedBox(make(), options)
        elif options not in ({}, opened.options):
            raise ArgumentValueError(
                f"{box.kind} {box.name!r} was made with other options: say them once, then call "
                f"{box.kind}({box.name!r}) alone"
            )
        public: BoxT = opened.public
        return public

    @verb
    def migrate(self) -> Program[list[int]]:
        """Makes or updates the tables. It can be repeated, and run in several processes at the same time.

        In a room with many stores, use `migrate_stores()`.

        Returns:
            The schema versions that were applied. Empty if there was nothing to do, or if the store has no tables.

        Raises:
            SchemaTooNew: a newer version of Postroom has changed the tables such that this one cannot use them.
        """
        if self._tenants is not None:
            raise StoreKeyMissing(
                "this room has many stores: call migrate_stores(), or migrate() of room.router.store(key)"
            )
        return (yield call(self._store.migrate)) if isinstance(self._store, Migrator) else []

    def schema_script(self) -> str:
        """Returns the tables as SQL text, to deploy them in your own way. It opens no connection.

        Returns:
            The SQL statements that `migrate()` runs on an empty database.

        Raises:
            FeatureMissing: the store has no tables.
        """
        if self._tenants is not None:
            raise StoreKeyMissing("this room has many stores: call schema_script() of room.router.store(key)")
        if not isinstance(self._store, Migrator):
            raise FeatureMissing(f"{self._store.name} has no tables")
        return self._store.schema_script()


def _refuse_besides_stores(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentValueError(
                f"a room with many stores takes no {name}: give it to each store, in a StoreConfig"
            )


# Python names this function in the error of an unknown option, for the rooms of both modes.
RoomVerbs.__init__.__qualname__ = "Postroom.__init__"
