"""Where a command works: on a room that a module made, or on whatever is at a URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import typer

from postroom import Inbox, Message, Outbox, Postroom
from postroom._kernel.states import BoxKind
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.modules import load
from postroom.errors import ArgumentValueError
from postroom.spi import Directory

AnyBox = Inbox | Outbox
R = TypeVar("R")
_MOST_NAMES = 10


def room_at(path: str | None, url: str | None, prefix: str, schema: str | None) -> Postroom:
    """The room of a module, or one on the database at a URL."""
    if path is None:
        return Postroom(url, prefix=prefix, schema=schema)
    if url is not None or schema is not None or prefix != DEFAULT_PREFIX:
        raise typer.BadParameter("a room has its own database: leave out --url, --schema and --prefix")
    return load(path)


def declared_box(room: Postroom, kind: BoxKind, name: str) -> AnyBox:
    """The box that a room has made under this name."""
    for face in room.boxes:
        if (face.box.kind, face.name) == (kind, name):
            found: AnyBox = face
            return found
    has = ", ".join(f"{face.box.kind} {face.name!r}" for face in room.boxes) or "no boxes"
    raise ArgumentValueError(f"the room has no {kind} {name!r}; it has {has}")


def named_boxes(room: Postroom, inboxes: Iterable[str] | None, outboxes: Iterable[str] | None) -> list[AnyBox]:
    """Those that are named, each once."""
    named: list[tuple[BoxKind, str]] = [("inbox", name) for name in inboxes or ()]
    named += [("outbox", name) for name in outboxes or ()]
    return [declared_box(room, kind, name) for kind, name in dict.fromkeys(named)]


@dataclass(frozen=True)
class Place:
    """A room, what is known of its boxes, and a loop to run their verbs in."""

    room: Postroom
    is_declared: bool
    """Whether a module made the room and so says which boxes it has, with which options."""
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    @classmethod
    def of(cls, path: str | None, url: str | None, prefix: str, schema: str | None = None) -> Place:
        return cls(room_at(path, url, prefix, schema), is_declared=path is not None)

    def boxes(self, inboxes: Iterable[str] | None, outboxes: Iterable[str] | None) -> list[AnyBox]:
        """Those that are named; otherwise all of a declared room, or of the database; or the two with default names."""
        named = [self._named("inbox", name) for name in inboxes or ()]
        named += [self._named("outbox", name) for name in outboxes or ()]
        if named:
            return named
        if self.is_declared:
            return self.room.boxes
        found = [key.split(":", 1) for key in self._found()]
        return [self._box(*each) for each in found] or [self.room.inbox(), self.room.outbox()]  # type: ignore[arg-type]

    def _found(self) -> list[str]:
        """What the database itself knows."""
        return self.wait(self.room.store.boxes()) if isinstance(self.room.store.store, Directory) else []

    def box(self, inbox: str | None, outbox: str | None) -> AnyBox:
        """The one box that is named."""
        if (inbox is None) == (outbox is None):
            raise typer.BadParameter("name one box, by --inbox or by --outbox", param_hint="--inbox / --outbox")
        return self._named("outbox", outbox) if inbox is None else self._named("inbox", inbox)

    def _named(self, kind: BoxKind, name: Any) -> AnyBox:
        """A box that somebody has typed. One that is empty may be a slip: then it helps to know the others."""
        face = self._box(kind, name)
        if not self.is_declared and (found := self._found()) and face.box.key not in found:
            others = ", ".join(found[:_MOST_NAMES]) + (", …" if len(found) > _MOST_NAMES else "")
            typer.echo(f"there is nothing in {face.box.key}; there is in {others}", err=True)
        return face

    def _box(self, kind: BoxKind, name: Any) -> AnyBox:
        if not self.is_declared:
            return self.room.inbox(name) if kind == "inbox" else self.room.outbox(name)
        return declared_box(self.room, kind, name)

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """A room is for async code; a command does one thing after the other, and may be interrupted in between."""
        return self._runner.run(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self.wait(self.room.close())


PAGE = 1000


def pages(
    place: Place, find: Callable[..., Coroutine[Any, Any, list[Message[Any]]]], after: int = 0
) -> Iterator[Message[Any]]:
    """All messages that `find` returns, page by page and without their payloads: there may be many."""
    while True:
        page = place.wait(find(after=after, limit=PAGE))
        for message in page:
            yield message.with_payload(None)
        if len(page) < PAGE:
            return
        after = page[-1].id
