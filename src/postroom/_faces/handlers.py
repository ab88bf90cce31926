"""Handlers: which function handles which topic, and how it wants to be called."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from postroom._faces import check, codec, typed
from postroom._kernel.message import Message
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, HandlerExists
from postroom.spi import Features

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A function for a topic."""

    topic: str
    function: Callable[..., Any]
    payload_type: Any
    """What a payload is decoded to; None leaves it plain."""
    batch: int | None
    """How many messages it takes at once; None is one message, not a list of one."""
    concurrency: int | None
    transactional: bool
    timeout: timedelta | None
    is_async: bool

    def decode(self, message: Message[Any]) -> Message[Any]:
        """The message with its payload as the handler wants it. Raises what the codec raises."""
        return codec.decode_as(message, self.payload_type)


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
        if name in self._by_topic:
            raise HandlerExists(f"{self._box.kind} {self._box.name!r} has a handler for {name!r} already")
        if transactional and not self._features.transactional:
            raise FeatureMissing(f"{self._box.kind} {self._box.name!r} is on a store without transactions")
        self._by_topic[name] = Handler(
            name,
            target,
            topic if isinstance(topic, type) else _annotated_payload(target),
            None if batch is None else check.count("batch", batch),
            None if concurrency is None else check.count("concurrency", concurrency),
            check.flag("transactional", transactional),
            check.optional_duration("timeout", timeout),
            inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None)),  # noqa: B004
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
    if not inspect.signature(target).parameters:
        raise ArgumentValueError("a handler takes the message as its first argument")
    return typing.cast("Callable[..., Any]", target)


def _annotated_payload(function: Callable[..., Any]) -> Any:
    """The T of a first parameter that is annotated `Message[T]` or `list[Message[T]]`; None where it says nothing."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):
        return None  # an annotation that only a type checker can see
    first = next(iter(inspect.signature(function).parameters))
    hint = hints.get(first)
    if typing.get_origin(hint) is list:
        (hint,) = typing.get_args(hint)
    if typing.get_origin(hint) is Message:
        (payload,) = typing.get_args(hint)
        return None if payload is Any or isinstance(payload, TypeVar) else payload
    return None
