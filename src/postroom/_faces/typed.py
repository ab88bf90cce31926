"""Typed messages: what a message's own class says about its topic, its key and its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import msgspec

from postroom._faces import check
from postroom._faces.codec import is_pydantic

C = TypeVar("C", bound=type)

_TOPIC = "__postroom_topic__"


def topic(name: str) -> Callable[[C], C]:
    """Give a message class the topic under which it is stored, so that the class can be renamed or moved."""
    check.text("topic", name)

    def decorate(cls: C) -> C:
        setattr(cls, _TOPIC, name)
        return cls

    return decorate


def topic_of(cls: type) -> str:
    return str(getattr(cls, _TOPIC, cls.__name__))


def is_typed(value: Any) -> bool:
    cls = type(value)
    if cls.__module__ == "builtins":  # most payloads are: a dict, a str
        return False
    return is_dataclass(cls) or isinstance(value, msgspec.Struct) or is_pydantic(value)


def said_by(value: Any, name: str) -> Any:
    """What a typed message says of itself, in a field or a method; None where it says nothing."""
    if not is_typed(value):
        return None
    said = getattr(value, name, None)
    return said() if callable(said) else said


def text_said_by(value: Any, name: str) -> str | None:
    said = said_by(value, name)
    return None if said is None else str(said)
