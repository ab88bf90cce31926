"""Handlers of a box for async code, and the worker that calls them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, overload

from postroom._boxes import handler_types
from postroom._boxes.base import BoxBase
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError

if TYPE_CHECKING:  # not at run time: it imports msgspec
    from postroom._boxes.handled_box import HandledBox

T = TypeVar("T")


class Workers(Protocol):
    """Starts and stops the workers of single boxes: the supervisor of a room."""

    def runs(self, key: str) -> bool: ...
    async def start_box(self, box: HandledBox) -> None: ...
    async def stop_box(self, key: str) -> None: ...


class WorkerVerbs(BoxBase):
    """Handlers, and the worker that calls them."""

    def __init__(self, handled: HandledBox, store: RoomStore, workers: Workers) -> None:
        super().__init__(handled.box, store)
        self._handled = handled
        self._workers = workers

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler in this process, in the order of registration."""
        return [handler.topic for handler in self._handled.handlers]

    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> handler_types.ForOne: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> handler_types.ForMany: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> handler_types.ForOneInTransaction: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> handler_types.ForManyInTransaction: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> handler_types.ForOneOf[T]: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> handler_types.ForManyOf[T]: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> handler_types.ForOneOfInTransaction[T]: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> handler_types.ForManyOfInTransaction[T]: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        transactional: bool = False,
        timeout: timedelta | None = None,
    ) -> handler_types.ForAny: ...
    def handler(
        self,
        topic: str | type,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        transactional: bool = False,
        timeout: timedelta | None = None,
    ) -> object:
        """Registers a handler: a function, plain or async, or an object with a method `handle`. Use it as a decorator.

        A handler takes the message, or with `batch` a list of messages; if it is transactional, also the open
        transaction. It returns None for success, or an `Outcome`. An exception is a failed attempt.

        Args:
            topic: the topic, or a message type, to which payloads are then decoded.
            batch: the handler takes a list of up to this many messages. None: one message.
            concurrency: how many of its calls run at the same time. None: as the box has it.
            transactional: the handler takes an open transaction, which commits together with the completion.
            timeout: how long a call may take. None: the `handler_timeout` of the box.

        Returns:
            A decorator, which returns the handler itself.

        Raises:
            HandlerExists: the topic has a handler in this box.
            FeatureMissing: `transactional`, on a store without transactions.
            ArgumentTypeError, ArgumentValueError: a bad argument, a wrong number of parameters, or annotations that
                do not fit.
        """
        if callable(topic) and not isinstance(topic, type):
            raise ArgumentTypeError('a handler is registered for a topic or a type: write @inbox.handler("topic")')

        def register(function: object) -> object:
            self._handled.handlers.add(
                topic, function, batch=batch, concurrency=concurrency, transactional=transactional, timeout=timeout
            )
            return function

        return register

    @property
    def is_running(self) -> bool:
        """True if a worker of this box runs, in any event loop of this process."""
        return self._workers.runs(self._box.key)

    async def start(self) -> None:
        """Starts the worker of this box alone. Does nothing if it runs, or if the box has no handlers.

        Raises:
            RoomClosed: the room is closed.
            OrderMismatch: the box has another order in the store.
        """
        await self._workers.start_box(self._handled)

    async def stop(self) -> None:
        """Stops the worker of this box alone.

        Waits for its handlers up to the `shutdown_timeout` of the room, then returns the other messages to the queue.
        """
        await self._workers.stop_box(self._box.key)
