"""The annotations of a handler: the payload that it takes, one message or a list, and what it returns.

An annotation that cannot be right is refused when the handler is registered. One that cannot be resolved at run time
is ignored. `transaction_annotations` checks the annotation of the transaction.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeVar

from postroom._boxes.handler_types import HandlerFunction
from postroom._kernel.message import Message
from postroom.errors import ArgumentTypeError

UNRESOLVED: Final = object()
_INNERMOST_ARGUMENTS = re.compile(r"\[[^\[\]]*\]")
_NO_RESULTS = (bool, int, float, str, bytes)


class Parameter(NamedTuple):
    """The first parameter of a handler; None if its annotation is missing or cannot be resolved."""

    is_list: bool | None = None
    payload: object = None


def parameter_of(function: HandlerFunction, batch: int | None, topic: str | type) -> Parameter:
    """Returns the first parameter: annotated as `Message`, `Message[T]` or a list of one of them. Raises if it does not
    fit `batch` or the message type `topic`."""
    parameter = _parse(_resolved(function, 0))
    if parameter.is_list and batch is None:
        raise ArgumentTypeError("the handler takes a list of messages: say how many, by batch=, or let it take one")
    if parameter.is_list is False and batch is not None:
        raise ArgumentTypeError("with batch= a handler gets a list: annotate it list[Message], or leave out batch")
    if isinstance(topic, type):
        _check_payload(parameter.payload, topic)
    return parameter


def check_result(function: HandlerFunction) -> None:
    """Raises if a handler is annotated to return a bool, a number or a text: each of its messages would fail."""
    hint = resolve(function, inspect.signature(function).return_annotation)
    if isinstance(hint, type) and hint in _NO_RESULTS:
        raise ArgumentTypeError(
            f"the handler returns a {hint.__name__}, as it is annotated: return None for success, or an Outcome"
        )


def _parse(hint: object) -> Parameter:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    is_list = isinstance(origin, type) and issubclass(list, origin) and issubclass(origin, Iterable)
    if is_list:
        hint = arguments[0]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Message:
        return Parameter(is_list)
    if origin is Message:
        (payload,) = arguments
        return Parameter(is_list, None if payload is Any or isinstance(payload, TypeVar) else payload)
    _check_is_message(hint, origin, is_list=is_list)
    return Parameter()


def _check_is_message(hint: object, origin: object, *, is_list: bool) -> None:
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


def _check_payload(annotated: object, topic: type) -> None:
    if not isinstance(annotated, type):
        return
    try:
        fits = issubclass(topic, annotated)
    except TypeError:
        return  # a protocol, or another type that only a type checker can compare
    if not fits:
        raise ArgumentTypeError(
            f"the handler is registered for {topic.__name__}, and its messages are annotated with {annotated.__name__}"
        )


def _resolved(function: HandlerFunction, position: int) -> object:
    """Returns the annotation of a parameter; None if it has none, or one that cannot be resolved."""
    hint = resolve(function, annotation_of(function, position))
    return None if hint is UNRESOLVED else hint


def annotation_of(function: HandlerFunction, position: int) -> object:
    """Returns the annotation of a parameter as written: a str if it is quoted, `Signature.empty` if there is none."""
    parameters = list(inspect.signature(function).parameters.values())
    return parameters[position].annotation if position < len(parameters) else inspect.Signature.empty


def resolve(function: HandlerFunction, annotation: object) -> object:
    """Returns the type that an annotation means: None for no annotation, UNRESOLVED if it cannot be resolved here."""
    if annotation is inspect.Signature.empty:
        return None
    # Only this annotation: the others may have names that exist for a type checker only.
    alone = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(alone, _globals(function))["it"]
    except TypeError:
        # "asyncpg.Connection[asyncpg.Record]": a class that is generic in its stubs only.
        bare = _INNERMOST_ARGUMENTS.sub("", annotation) if isinstance(annotation, str) else annotation
        return UNRESOLVED if bare == annotation else resolve(function, bare)
    except (NameError, AttributeError, SyntaxError):
        return UNRESOLVED


def _globals(function: HandlerFunction) -> dict[str, object]:
    """Returns the globals in which annotations are resolved: of a function, or of what a partial or an object calls."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    return getattr(function, "__globals__", {})
