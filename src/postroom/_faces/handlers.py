"""Handlers: which function handles which topic, and how it wants to be called."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

from postroom._faces import check, codec, typed
from postroom._kernel.message import Message
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, HandlerExists
from postroom.spi import Features


class HasHandle(Protocol):
    """An object that can be registered as a handler."""

    @property
    def handle(self) -> Callable[..., Any]: ...


F = TypeVar("F", bound=Callable[..., Any] | HasHandle)


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

    def __init__(self, box: Box, features: Features) -> None:
        self._box = box
        self._features = features
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
        takes = _annotated(target)
        _check_shape(takes, batch)
        payload_type = takes.payload
        if isinstance(topic, type):
            _check_payload(takes, topic)
            payload_type = topic
        self._by_topic[name] = Handler(
            name,
            target,
            codec.decoder(payload_type),
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


class _Takes(NamedTuple):
    """What the first parameter of a handler is annotated with; None where it says nothing."""

    is_list: bool | None = None
    payload: Any = None


def _check_shape(takes: _Takes, batch: int | None) -> None:
    if takes.is_list and batch is None:
        raise ArgumentTypeError("the handler takes a list of messages: say how many, by batch=, or let it take one")
    if takes.is_list is False and batch is not None:
        raise ArgumentTypeError("with batch= a handler gets a list: annotate it list[Message], or leave out batch")


def _check_payload(takes: _Takes, topic: type) -> None:
    try:
        fits = not isinstance(takes.payload, type) or issubclass(topic, takes.payload)
    except TypeError:
        return  # a protocol, or another type that only a type checker can compare
    if not fits:
        raise ArgumentTypeError(
            f"the handler is registered for {topic.__name__}, and its messages are annotated with "
            f"{takes.payload.__name__}"
        )


def _annotated(function: Callable[..., Any]) -> _Takes:
    """By `Message`, `Message[T]`, or a list of one of them."""
    first = next(iter(inspect.signature(function).parameters.values()))
    # The first alone: what others are annotated with may be there for a type checker only.
    alone = SimpleNamespace(__annotations__={"first": first.annotation})
    try:
        hint = typing.get_type_hints(alone, _globals(function))["first"]
    except (NameError, AttributeError, TypeError):
        return _Takes()  # an annotation that only a type checker can see
    is_list = typing.get_origin(hint) in (list, Sequence)
    if is_list:
        (hint,) = typing.get_args(hint)
    if hint is Message:
        return _Takes(is_list)
    if typing.get_origin(hint) is not Message:
        return _Takes()
    (payload,) = typing.get_args(hint)
    return _Takes(is_list, None if payload is Any or isinstance(payload, TypeVar) else payload)


def _globals(function: Any) -> dict[str, Any]:
    """Where the annotations of a function, or of what a partial or an object calls, find their names."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    return getattr(function, "__globals__", {})
