"""Handlers: which function handles which topic, and how it wants to be called."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroom._faces import check, codec, hints, transaction_hints, typed
from postroom._kernel.decide import Outcome
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, HandlerExists
from postroom.spi import Features


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A function for a topic."""

    topic: str
    function: Callable[..., Any]
    decode: codec.Decode
    """Decodes a payload to the type that the function takes."""
    batch: int | None
    """How many messages it takes at once; None is one message, not a list of one."""
    concurrency: int | None
    transactional: bool
    timeout: timedelta | None
    is_async: bool

    @property
    def is_plain(self) -> bool:
        """It takes a message at a time, in no transaction."""
        return self.batch is None and not self.transactional


class Handlers:
    """The handlers of one box: one per topic."""

    def __init__(self, box: Box, features: Features, tx_classes: Sequence[str] = ()) -> None:
        """`tx_classes`: what the transaction of a handler is; empty where the store does not say."""
        self._box = box
        self._features = features
        self._tx_classes = tx_classes
        self._by_topic: dict[str, Handler] = {}

    def add(
        self,
        topic: Any,
        function: Any,
        *,
        batch: int | None,
        concurrency: int | None,
        transactional: bool,
        timeout: timedelta | None,
    ) -> None:
        name = check.text("topic", typed.topic_of(topic) if isinstance(topic, type) else topic)
        target = _callable(function)
        is_async = _is_async(target)
        if name in self._by_topic:
            raise HandlerExists(f"{self._box.kind} {self._box.name!r} has a handler for {name!r} already")
        if check.flag("transactional", transactional):
            if not self._features.transactional:
                raise FeatureMissing(
                    f"{self._box.kind} {self._box.name!r} is on a store without transactions: make the handler "
                    "idempotent, or use a store on your SQL database"
                )
            if not is_async:
                raise ArgumentTypeError("a transactional handler is an async function: its transaction is awaited")
        _check_takes(target, 2 if transactional else 1)
        takes = hints.taken(target, batch, topic)
        hints.check_result(target)
        session = transaction_hints.session_class(target, self._tx_classes) if transactional else None
        self._by_topic[name] = Handler(
            name,
            target if session is None else _with_session(target, session),
            codec.decoder(topic if isinstance(topic, type) else takes.payload),
            None if batch is None else check.count("batch", batch),
            None if concurrency is None else check.count("concurrency", concurrency),
            transactional,
            check.optional_duration("timeout", timeout),
            is_async,
        )

    def get(self, topic: str) -> Handler | None:
        return self._by_topic.get(topic)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_topic.values())

    def __len__(self) -> int:
        return len(self._by_topic)


def _callable(function: Any) -> Callable[..., Any]:
    """A function, or the `handle` method of an object."""
    if isinstance(function, type):
        raise ArgumentTypeError(f"pass an instance of {function.__name__}, not the class itself")
    target = getattr(function, "handle", function)
    if not callable(target):
        raise ArgumentTypeError(f"a handler is a function or has a handle method; {type(function).__name__} is neither")
    return typing.cast("Callable[..., Any]", target)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _check_takes(function: Callable[..., Any], count: int) -> None:
    """Told when it is registered, not by each message that fails."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        raise ArgumentValueError(
            "a handler takes one argument, the message or the list of messages"
            if count == 1
            else "a transactional handler takes two arguments: the message or the list of messages, and the transaction"
        ) from None


def _with_session(function: Callable[..., Any], session_class: Any) -> Callable[..., Any]:
    """The handler asks for a session: one on the connection of its transaction, in which the worker settles."""

    @functools.wraps(function)
    async def handle(given: Any, connection: Any) -> Any:
        # In this mode the session never commits or closes the transaction, which is the worker's.
        async with session_class(bind=connection, join_transaction_mode="rollback_only") as session:
            await session.begin()
            answer = await function(given, session)
            if not isinstance(answer, Outcome) or answer.result == "success":
                await session.flush()  # what the handler has only added to it
            return answer

    return handle
