"""The annotation of the transaction, the second parameter of a transactional handler.

The annotation decides what the handler gets: with `AsyncSession` a session, if the room can make one. An annotation
that cannot be resolved, or that no transaction of this room has, is refused when the handler is registered.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from postroom._boxes.handler_annotations import UNRESOLVED, annotation_of, resolve
from postroom._boxes.handler_types import HandlerFunction
from postroom._kernel.texts import escape
from postroom.errors import ArgumentTypeError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

SESSION = "sqlalchemy.AsyncSession"


def session_class(function: HandlerFunction, tx_classes: Sequence[str], position: int = 1) -> type[AsyncSession] | None:
    """Returns the class of SQLAlchemy session that the handler is annotated with; None: it gets what the store passes.

    `position`: where the transaction is among the parameters. `tx_classes` are the class names of what the store
    passes. If it is empty, nothing is refused.
    """
    annotation = annotation_of(function, position)
    hint = resolve(function, annotation)
    if hint is None or not tx_classes:
        return None
    if hint is UNRESOLVED:
        written = escape(str(annotation)).strip("'\"")
        raise ArgumentTypeError(
            f"the handler annotates its transaction with {written}, which cannot be resolved at run time, so it is "
            "unknown what to pass: import the name at the top of the module, outside of TYPE_CHECKING, or leave the "
            "annotation out"
        )
    members = [typing.get_origin(member) or member for member in _members(hint)]
    sessions = [member for member in members if isinstance(member, type) and SESSION in _class_names(member)]
    is_ambiguous = sessions and len(members) > 1
    if is_ambiguous or not any(_may_be(member, tx_classes) for member in members):
        raise ArgumentTypeError(_refusal(members, tx_classes))
    return sessions[0] if sessions else None


def _refusal(members: Sequence[object], tx_classes: Sequence[str]) -> str:
    asked = " | ".join(_name(member) for member in members)
    packages = {name.partition(".")[0]: name for name in reversed(tx_classes)}
    passed = f"this room passes a {' or '.join(reversed(packages.values()))}"
    text = f"the handler annotates its transaction with {asked}, and {passed}: annotate it with"
    if SESSION not in tx_classes:
        session = f"; to get a {SESSION}, give the room your SQLAlchemy engine on PostgreSQL, as pool="
        return f"{text} that{session if 'sqlalchemy.' in asked else ''}"
    if "session" in asked.lower():
        return f"{text} {SESSION} alone, to get a session"
    return f"{text} that, or with {SESSION} to get a session"


def _members(hint: object) -> Iterator[object]:
    """Yields the members of a union, or the type itself. Resolves aliases, new types and type variables."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        for member in typing.get_args(hint):
            yield from _members(member)
        return
    names = () if isinstance(hint, type) else ("__value__", "__supertype__", "__bound__")
    behind = next(filter(None, (getattr(hint, name, None) for name in names)), None)
    if behind is None:
        yield hint
    else:
        yield from _members(behind)


def _may_be(kind: object, tx_classes: Sequence[str]) -> bool:
    """Returns True if a transaction of the room may be of this type, or if only a type checker can decide that."""
    if kind is Any or kind is object or not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False) or inspect.isabstract(kind):
        return True
    return any(name in tx_classes for related in _related(kind) for name in _class_names(related))


def _related(kind: type) -> Iterator[type]:
    """Yields a class and its subclasses: an annotation with a base class of the connection's class fits too."""
    yield kind
    subclasses: list[type] = type.__subclasses__(kind)
    for subclass in subclasses:
        yield from _related(subclass)


def _class_names(cls: type) -> list[str]:
    """Returns the names of a class and its bases, each with its top-level package."""
    return [f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__]


def _name(member: object) -> str:
    return _class_names(member)[0].removeprefix("builtins.") if isinstance(member, type) else escape(str(member))
