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
from postroom._kernel.states import BoxKind
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
    StoreKeys,
    StoresFile,
    Url,
    Yes,
)
from postroom.cli.session import AnyBox, ChosenStore, Session, declared_box, room_at


@dataclass(frozen=True, kw_only=True)
class OneBox:
    """The box that a command works on."""

    inbox: Inbox = None
    outbox: Outbox = None

    @property
    def key(self) -> tuple[BoxKind, str]:
        """The kind and the name of the box."""
        if (self.inbox is None) == (self.outbox is None):
            raise typer.BadParameter("name one box, by --inbox or by --outbox", param_hint="--inbox / --outbox")
        return ("inbox", self.inbox) if self.inbox is not None else ("outbox", self.outbox or "")

    async def of(self, store: ChosenStore) -> AnyBox:
        return await store.named(*self.key)

    def check(self, session: Session) -> None:
        """Raises if the room declares its boxes, and has none of this name."""
        if session.is_declared:
            declared_box(session.room, *self.key)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Which part of a long list is shown."""

    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most, of each store.")] = 50
    after: Annotated[int, typer.Option(min=0, help="Only those after this one: see the page before.")] = 0

    def check(self, session: Session) -> None:
        """Raises if `after` is given for several stores: each store has its own numbers."""
        if self.after:
            session.check_one("what --after names")

    @staticmethod
    def text(lines: str, following: int | None) -> str:
        return lines if following is None else f"{lines}\nthere may be more: --after {following}"


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
    """The database, the stores or the room of a command, and how it prints."""

    room: RoomArgument = None
    url: Url = None
    schema: Schema = None
    prefix: Prefix = DEFAULT_PREFIX
    stores: StoresFile = None
    store: StoreKeys = None
    json: Json = False

    def open(self) -> Session:
        room = room_at(self.room, self.url, self.prefix, self.schema, self.stores)
        return Session(room, is_declared=self.room is not None, keys=self.store, json=self.json)


@dataclass(frozen=True, kw_only=True)
class Target(Database):
    """The same for a command whose arguments are messages or groups."""

    room: RoomOption = None


@dataclass(frozen=True, kw_only=True)
class Boxes(Database):
    """The same for a command that takes several boxes."""

    inbox: Inboxes = None
    outbox: Outboxes = None

    async def of(self, store: ChosenStore) -> list[AnyBox]:
        return await store.boxes(self.inbox, self.outbox)


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
