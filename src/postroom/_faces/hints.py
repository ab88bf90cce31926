"""What the annotations of a handler say: which payload it takes, one message or a list, and what it returns.

An annotation that cannot be right is refused when the handler is registered. One that only a type checker can resolve
says nothing here; that of a transaction is checked in `transaction_hints`.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeVar

from postroom._kernel.message import Message
from postroom.errors import ArgumentTypeError

UNRESOLVED: Final[Any] = object()
_INNERMOST_ARGUMENTS = re.compile(r"\[[^\[\]]*\]")
_NO_RESULTS = (bool, int, float, str, bytes)


class Takes(NamedTuple):
    """What a handler takes as its first argument; None where the annotation says nothing."""

    is_list: bool | None = None
    payload: Any = None


def taken(function: Callable[..., Any], batch: int | None, topic: Any) -> Takes:
    """What the first parameter says, as `Message`, `Message[T]` or a list of one of them."""
    takes = _takes(_hint(function, 0))
    if takes.is_list and batch is None:
        raise ArgumentTypeError("the handler takes a list of messages: say how many, by batch=, or let it take one")
    if takes.is_list is False and batch is not None:
        raise ArgumentTypeError("with batch= a handler gets a list: annotate it list[Message], or leave out batch")
    if isinstance(topic, type):
        _check_payload(takes, topic)
    return takes


def check_result(function: Callable[..., Any]) -> None:
    """A handler that returns True would fail on every message."""
    hint = resolve(function, inspect.signature(function).return_annotation)
    if hint in _NO_RESULTS:
        raise ArgumentTypeError(
            f"the handler returns a {hint.__name__}, as it is annotated: return None for success, or an Outcome"
        )


def _takes(hint: Any) -> Takes:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    is_list = isinstance(origin, type) and issubclass(list, origin) and issubclass(origin, Iterable)
    if is_list:
        hint = arguments[0]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Message:
        return Takes(is_list)
    if origin is Message:
        (payload,) = arguments
        return Takes(is_list, None if payload is Any or isinstance(payload, TypeVar) else payload)
    _check_is_message(hint, origin, is_list=is_list)
    return Takes()


def _check_is_message(hint: Any, origin: Any, *, is_list: bool) -> None:
    kind = origin if isinstance(origin, type) else hint
    try:
        fits = kind is Any or not isinstance(kind, type) or issubclass(Message, kind)
    except TypeError:
        return  # a protocol, or another type that only a type checker can compare
    if not fits:
        name = getattr(kind, "__name__", str(kind))
        wanted, given = ("list[Message[{0}]]", "list[{0}]") if is_list else ("Message[{0}]", "{0}")
        raise ArgumentTypeError(
            f"a handler gets the message, and this one is annotated with {given.format(name)}: annotate it with "
            f"{wanted.format(name)}, and read message.payload"
        )


def _check_payload(takes: Takes, topic: type) -> None:
    try:
        fits = not isinstance(takes.payload, type) or issubclass(topic, takes.payload)
    except TypeError:
        return  # a protocol, or another type that only a type checker can compare
    if not fits:
        raise ArgumentTypeError(
            f"the handler is registered for {topic.__name__}, and its messages are annotated with "
            f"{takes.payload.__name__}"
        )


def _hint(function: Callable[..., Any], position: int) -> Any:
    """What a parameter is annotated with; None where that is nothing, or cannot be resolved."""
    hint = resolve(function, annotation_of(function, position))
    return None if hint is UNRESOLVED else hint


def annotation_of(function: Callable[..., Any], position: int) -> Any:
    """The annotation of a parameter as it is written: a text, if it is quoted; `Signature.empty` if there is none."""
    parameters = list(inspect.signature(function).parameters.values())
    return parameters[position].annotation if position < len(parameters) else inspect.Signature.empty


def resolve(function: Callable[..., Any], annotation: Any) -> Any:
    """What an annotation refers to: None where there is none, and UNRESOLVED where only a type checker can tell."""
    if annotation is inspect.Signature.empty:
        return None
    # One annotation alone: the others may be there for a type checker only.
    alone = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(alone, _globals(function))["it"]
    except TypeError:
        # "asyncpg.Connection[asyncpg.Record]": a class that is generic in its stubs only.
        bare = _INNERMOST_ARGUMENTS.sub("", annotation) if isinstance(annotation, str) else annotation
        return UNRESOLVED if bare == annotation else resolve(function, bare)
    except (NameError, AttributeError, SyntaxError):
        return UNRESOLVED


def _globals(function: Any) -> dict[str, Any]:
    """Where the annotations of a function, or of what a partial or an object calls, find their names."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    return getattr(function, "__globals__", {})
