"""What a box for async code has besides its verbs: handlers, and a worker that calls them."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

from postroom._faces import shapes
from postroom._faces.handlers import Handlers
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError

T = TypeVar("T")


class Working:
    """What a box for async code has besides: handlers, and a worker that calls them."""

    box: Box
    _store: Any
    supervisor: Any
    """Set by the room."""

    @property
    def claimed_topics(self) -> frozenset[str] | None:
        """Which topics the worker claims; None is any."""
        return frozenset(handler.topic for handler in self.handlers) if self.box.work.only_handled else None

    @cached_property
    def handlers(self) -> Handlers:
        return Handlers(self.box, self._store.features, self._store.tx_classes)

    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> shapes.ForOne: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> shapes.ForMany: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> shapes.ForOneInTransaction: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> shapes.ForManyInTransaction: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> shapes.ForOneOf[T]: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[False] = False,
        timeout: timedelta | None = None,
    ) -> shapes.ForManyOf[T]: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: None = None,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> shapes.ForOneOfInTransaction[T]: ...
    @overload
    def handler(
        self,
        topic: type[T],
        *,
        batch: int,
        concurrency: int | None = None,
        transactional: Literal[True],
        timeout: timedelta | None = None,
    ) -> shapes.ForManyOfInTransaction[T]: ...
    @overload
    def handler(
        self,
        topic: str,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        transactional: bool = False,
        timeout: timedelta | None = None,
    ) -> shapes.ForAny: ...
    def handler(
        self,
        topic: Any,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        transactional: bool = False,
        timeout: timedelta | None = None,
    ) -> Any:
        """Register a function, plain or async, or an object with a `handle` method, for a topic or a message type.

        It gets the message, or with `batch` a list of messages; with `transactional` also the open transaction, which
        commits with the completion. None means success; an Outcome is obeyed; an exception is a failed attempt.
        """
        if callable(topic) and not isinstance(topic, type):
            raise ArgumentTypeError('a handler is registered for a topic or a type: write @inbox.handler("topic")')

        def register(function: Any) -> Any:
            self.handlers.add(
                topic, function, batch=batch, concurrency=concurrency, transactional=transactional, timeout=timeout
            )
            return function

        return register

    @property
    def is_running(self) -> bool:
        return bool(self.supervisor.runs(self.box.key))

    async def start(self) -> None:
        """Start this box's worker alone."""
        await self.supervisor.start_box(self)

    async def stop(self) -> None:
        """Stop this box's worker alone, gracefully."""
        await self.supervisor.stop_box(self.box.key)
