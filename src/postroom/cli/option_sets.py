"""Sets of options that several commands take. Typer has single options only: `with_sets` declares each of a set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, get_type_hints

import typer

from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom.cli.options import (
    Inbox,
    Inboxes,
    Json,
    Outbox,
    Outboxes,
    Prefix,
    RoomArgument,
    RoomOption,
    Schema,
    Url,
    Yes,
)
from postroom.cli.session import AnyBox, Session


@dataclass(frozen=True, kw_only=True)
class OneBox:
    """The box that a command works on."""

    inbox: Inbox = None
    outbox: Outbox = None

    def of(self, session: Session) -> AnyBox:
        return session.box(self.inbox, self.outbox)


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The filters; what is None does not restrict."""

    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None
    source: Annotated[str | None, typer.Option(help="Only those of this source.")] = None
    group: Annotated[str | None, typer.Option(help="Only those of this group.")] = None


@dataclass(frozen=True, kw_only=True)
class Consent:
    """Whether a command may change anything, and whether it asks first."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False
    yes: Yes = False

    @property
    def is_asked_for(self) -> bool:
        return not (self.yes or self.dry_run)


@dataclass(frozen=True, kw_only=True)
class Database:
    """The database or room of a command."""

    room: RoomArgument = None
    url: Url = None
    schema: Schema = None
    prefix: Prefix = DEFAULT_PREFIX

    def open(self) -> Session:
        return Session.of(self.room, self.url, self.prefix, self.schema)


@dataclass(frozen=True, kw_only=True)
class Target(Database):
    """The database or room of a command whose arguments are messages or groups, and how it prints."""

    room: RoomOption = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Boxes(Database):
    """The database or room of a command that takes several boxes."""

    inbox: Inboxes = None
    outbox: Outboxes = None

    def of(self, session: Session) -> list[AnyBox]:
        return session.boxes(self.inbox, self.outbox)


def with_sets(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command with one parameter for each field of its sets of options."""
    hints = get_type_hints(command, include_extras=True)
    sets: dict[str, type] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }
    signature = inspect.signature(command)
    parameters: list[Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in sets:
            parameters += _parameters(sets[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def call(**given: object) -> None:
        for name, kind in sets.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameters(kind: type) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(kind)
    ]
