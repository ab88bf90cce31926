"""Typed messages: dataclasses, msgspec Structs and pydantic models that have their own topic, key and group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import ClassVar, Protocol, TypeGuard, TypeVar

from postroom._boxes import check

C = TypeVar("C", bound=type)

_TOPIC = "__postroom_topic__"


class PydanticModel(Protocol):
    """What is used of an instance of a pydantic model."""

    model_config: ClassVar[Mapping[str, object]]

    def model_dump(self, *, mode: str = ...) -> dict[str, object]: ...
    def model_dump_json(self) -> str: ...


def topic(name: str) -> Callable[[C], C]:
    """Sets the topic of a message class, so that the class can be renamed or moved. Without it, the topic is its name.

    Args:
        name: the topic under which messages of the class are stored.

    Returns:
        A class decorator, which returns the class itself.
    """
    check.text("topic", name)

    def decorate(cls: C) -> C:
        setattr(cls, _TOPIC, name)
        return cls

    return decorate


def topic_of(cls: type) -> str:
    """Returns the topic of a message class: the one set by `@topic`, or its name."""
    return str(getattr(cls, _TOPIC, cls.__name__))


def is_typed(value: object) -> bool:
    """Returns True for an instance of a dataclass, a msgspec Struct or a pydantic model."""
    cls = type(value)
    if cls.__module__ == "builtins":  # most payloads: a dict, a str
        return False
    # By attribute: importing msgspec here would double the time of `import postroom`.
    return is_dataclass(cls) or hasattr(cls, "__struct_fields__") or is_pydantic(value)


def is_pydantic(value: object) -> TypeGuard[PydanticModel]:
    """Returns True for an instance of a pydantic model."""
    return hasattr(type(value), "model_dump_json")


def attribute_of(message: object, name: str) -> object:
    """Returns the value of a field or method of a typed message; None if it has none, or if it is not typed."""
    if not is_typed(message):
        return None
    value = getattr(message, name, None)
    return value() if callable(value) else value


def text_of(message: object, name: str) -> str | None:
    """Returns the value of a field or method as text."""
    value = attribute_of(message, name)
    return None if value is None else str(value)
