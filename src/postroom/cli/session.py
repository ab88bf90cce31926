"""The room that a command works on, from a module or a URL, and the event loop in which its verbs run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self, TypeVar, cast

import typer

from postroom import Inbox, Outbox, Postroom
from postroom._kernel.message import AnyMessage
from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._kernel.states import BoxKind
from postroom.cli.modules import load
from postroom.errors import ArgumentValueError
from postroom.spi import BoxLister

AnyBox = Inbox | Outbox
R = TypeVar("R")
_MOST_NAMES = 10


def room_at(path: str | None, url: str | None, prefix: str, schema: str | None) -> Postroom:
    """Returns the room of a module, or a new one on the database at a URL."""
    if path is None:
        return Postroom(url, prefix=prefix, schema=schema)
    if url is not None or schema is not None or prefix != DEFAULT_PREFIX:
        raise typer.BadParameter("a room has its own database: leave out --url, --schema and --prefix")
    return load(path)


def declared_box(room: Postroom, kind: BoxKind, name: str) -> AnyBox:
    """Returns the box that a room has made under this name. Raises ArgumentValueError if there is none."""
    for each in room.boxes:
        if (each.box.kind, each.name) == (kind, name):
            return each
    has = ", ".join(f"{each.box.kind} {each.name!r}" for each in room.boxes) or "no boxes"
    raise ArgumentValueError(f"the room has no {kind} {name!r}; it has {has}")


def named_boxes(room: Postroom, inboxes: Iterable[str] | None, outboxes: Iterable[str] | None) -> list[AnyBox]:
    """Returns the named boxes, each once."""
    named: list[tuple[BoxKind, str]] = [("inbox", name) for name in inboxes or ()]
    named += [("outbox", name) for name in outboxes or ()]
    return [declared_box(room, kind, name) for kind, name in dict.fromkeys(named)]


@dataclass(frozen=True)
class Session:
    """A room, its boxes, and an event loop to run their verbs in."""

    room: Postroom
    is_declared: bool
    """True if a module made the room, and so declares its boxes with their options."""
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    @classmethod
    def of(cls, path: str | None, url: str | None, prefix: str, schema: str | None = None) -> Session:
        return cls(room_at(path, url, prefix, schema), is_declared=path is not None)

    def boxes(self, inboxes: Iterable[str] | None, outboxes: Iterable[str] | None) -> list[AnyBox]:
        """Returns the named boxes; without names, all of a declared room or of the database, or the default boxes."""
        named = [self._named("inbox", name) for name in inboxes or ()]
        named += [self._named("outbox", name) for name in outboxes or ()]
        if named:
            return named
        if self.is_declared:
            return self.room.boxes
        found = [key.split(":", 1) for key in self._found()]
        return [self._box(*each) for each in found] or [self.room.inbox(), self.room.outbox()]  # type: ignore[arg-type]

    def _found(self) -> list[str]:
        """Returns the keys of the boxes that the database has."""
        return self.wait(self.room.store.boxes()) if isinstance(self.room.store, BoxLister) else []

    def box(self, inbox: str | None, outbox: str | None) -> AnyBox:
        """Returns the one box that is named."""
        if (inbox is None) == (outbox is None):
            raise typer.BadParameter("name one box, by --inbox or by --outbox", param_hint="--inbox / --outbox")
        return self._named("inbox", inbox) if inbox is not None else self._named("outbox", outbox or "")

    def outbox(self, name: str) -> Outbox:
        """Returns the outbox of this name."""
        return cast("Outbox", self._named("outbox", name))

    def _named(self, kind: BoxKind, name: str) -> AnyBox:
        """Returns a box by the name that the user typed. The name of an empty box may be wrong: it lists the others."""
        box = self._box(kind, name)
        if not self.is_declared and (found := self._found()) and box.box.key not in found:
            others = ", ".join(found[:_MOST_NAMES]) + (", …" if len(found) > _MOST_NAMES else "")
            typer.echo(f"there is nothing in {box.box.key}; there is in {others}", err=True)
        return box

    def _box(self, kind: BoxKind, name: str) -> AnyBox:
        if not self.is_declared:
            return self.room.inbox(name) if kind == "inbox" else self.room.outbox(name)
        return declared_box(self.room, kind, name)

    def wait(self, work: Coroutine[object, None, R]) -> R:
        """Runs an async verb and returns its result. Ctrl-C can interrupt a command between two verbs."""
        return self._runner.run(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self.wait(self.room.close())


PAGE = 1000


def pages(
    session: Session, find: Callable[..., Coroutine[object, None, list[AnyMessage]]], after: int = 0
) -> Iterator[AnyMessage]:
    """Yields all messages that `find` returns, page by page and without their payloads, since there may be many."""
    while True:
        page = session.wait(find(after=after, limit=PAGE))
        for message in page:
            yield message.with_payload(None)
        if len(page) < PAGE:
            return
        after = page[-1].id
