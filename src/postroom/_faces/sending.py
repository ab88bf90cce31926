"""What a type checker knows of `enqueue`: a topic with a payload, or a typed message alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from postroom._kernel.message import OnConflict, OnDuplicate, Receipt
from postroom._kernel.program import Async, Program, Sync, verb

R_co = TypeVar("R_co", covariant=True)


class DataclassMessage(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class PydanticMessage(Protocol):
    """An instance of a pydantic model."""

    def model_dump_json(self) -> str: ...


TypedMessage = DataclassMessage | msgspec.Struct | PydanticMessage
"""A message that is enqueued alone: its class says the topic."""


class EnqueueOptions(TypedDict, total=False):
    """The keyword arguments of `enqueue`."""

    source: str | None
    message_id: str | None
    correlation_id: str | None
    group: str | None
    collapse_key: str | None
    headers: Mapping[str, str] | None
    due: datetime | None
    expires: datetime | None
    received_at: datetime | None
    hash: bytes | None
    hash_algorithm: str
    on_conflict: OnConflict
    revive_dead: bool
    on_duplicate: OnDuplicate | None
    tx: Any


class Enqueue(Protocol[R_co]):
    @overload
    def __call__(self, topic: str, payload: Any, **options: Unpack[EnqueueOptions]) -> R_co: ...
    @overload
    def __call__(self, topic: TypedMessage, **options: Unpack[EnqueueOptions]) -> R_co: ...


class EnqueueVerb(Protocol):
    """A `verb` with overloads, which a ParamSpec cannot have."""

    @overload
    def __get__(self, instance: Async, owner: Any = None) -> Enqueue[Coroutine[Any, Any, Receipt]]: ...
    @overload
    def __get__(self, instance: Sync, owner: Any = None) -> Enqueue[Receipt]: ...
    @overload
    def __get__(self, instance: None, owner: Any = None) -> Callable[..., Any]: ...


def enqueue_verb(function: Callable[..., Program[Receipt]]) -> EnqueueVerb:
    return cast("EnqueueVerb", verb(function))
