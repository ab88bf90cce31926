"""The room that a command works on, its stores, and the event loop in which verbs run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar, cast

import typer

from postroom import Inbox, Outbox, Postroom, StoreResult, TenantInbox, TenantOutbox
from postroom._kernel.message import AnyMessage
from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._kernel.states import BoxKind
from postroom.cli.errors import is_for_the_user, text_of
from postroom.cli.modules import load
from postroom.cli.options import counted, print_json
from postroom.cli.progress import progress_bar
from postroom.cli.stores_file import room_of
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing
from postroom.spi import BoxLister, Store

AnyOutbox: TypeAlias = Outbox | TenantOutbox
AnyBox: TypeAlias = Inbox | TenantInbox | AnyOutbox
R = TypeVar("R")
_MOST_NAMES = 10
DEFAULT_PARALLEL = 4


def room_at(
    path: str | None, url: str | None, prefix: str, schema: str | None = None, stores: Path | None = None
) -> Postroom:
    """Returns the room of a module, or a new one on the database at a URL, or on the stores of a file."""
    if path is None and stores is None:
        return Postroom(url, prefix=prefix, schema=schema)
    if path is not None and stores is not None:
        raise typer.BadParameter("a room has its own stores: pass a room or --stores, not both")
    if url is not None or schema is not None or prefix != DEFAULT_PREFIX:
        raise typer.BadParameter(
            f"{'a room' if stores is None else '--stores'} has its own database: leave out --url, --schema and --prefix"
        )
    return load(path) if path is not None else room_of(cast("Path", stores))


def has_many_stores(room: Postroom) -> bool:
    try:
        return room.router is not None
    except FeatureMissing:
        return False


def declared_box(room: Postroom, kind: BoxKind, name: str) -> Inbox | Outbox:
    """Returns the box that a room has made under this name. Raises ArgumentValueError if there is none."""
    for each in room.boxes:
        if (each.box.kind, each.name) == (kind, name):
            return each
    has = ", ".join(f"{each.box.kind} {each.name!r}" for each in room.boxes) or "no boxes"
    raise ArgumentValueError(f"the room has no {kind} {name!r}; it has {has}")


def named_boxes(room: Postroom, inboxes: Iterable[str] | None, outboxes: Iterable[str] | None) -> list[Inbox | Outbox]:
    """Returns the named boxes, each once."""
    named: list[tuple[BoxKind, str]] = [("inbox", name) for name in inboxes or ()]
    named += [("outbox", name) for name in outboxes or ()]
    return [declared_box(room, kind, name) for kind, name in dict.fromkeys(named)]


@dataclass
class ChosenStore:
    """One store that a command works on, and its boxes."""

    room: Postroom
    key: str | None
    """Its identifier; None: the room has this store alone."""
    store: Store
    is_declared: bool
    """True if a module made the room, and so declares its boxes with their options."""
    note: str | None = None
    """A remark for the user about a box that may be misspelled."""

    @property
    def name(self) -> str:
        return self.store.name

    async def boxes(self, inboxes: Iterable[str] | None, outboxes: Iterable[str] | None) -> list[AnyBox]:
        """Returns the named boxes; without names, all of a declared room or of the database, or the default boxes."""
        named = [await self.named("inbox", name) for name in inboxes or ()]
        named += [await self.named("outbox", name) for name in outboxes or ()]
        if named:
            return named
        if self.is_declared:
            return [self._box(each.box.kind, each.name) for each in self.room.boxes]
        found = [key.split(":", 1) for key in await self._found()]
        if not found and self.key is None:
            return [self.room.inbox(), self.room.outbox()]
        return [self._box(*each) for each in found]  # type: ignore[arg-type]

    async def outbox(self, name: str) -> AnyOutbox:
        """Returns the outbox of this name."""
        return cast("AnyOutbox", await self.named("outbox", name))

    async def named(self, kind: BoxKind, name: str) -> AnyBox:
        """Returns a box by the name that the user typed. The name of an empty box may be wrong: it notes the others."""
        box = self._box(kind, name)
        if not self.is_declared and (found := await self._found()) and box.box.key not in found:
            others = ", ".join(found[:_MOST_NAMES]) + (", …" if len(found) > _MOST_NAMES else "")
            self.note = f"there is nothing in {box.box.key}; there is in {others}"
        return box

    async def _found(self) -> list[str]:
        """Returns the keys of the boxes that the database has."""
        return await self.store.boxes() if isinstance(self.store, BoxLister) else []

    def _box(self, kind: BoxKind, name: str) -> AnyBox:
        if self.is_declared:
            declared_box(self.room, kind, name)
        if self.key is None:
            return self.room.inbox(name) if kind == "inbox" else self.room.outbox(name)
        router = self.room.router
        return router.inbox(self.key, name) if kind == "inbox" else router.outbox(self.key, name)


class Visited(NamedTuple, Generic[R]):
    """The result of a command for one store."""

    store: str | None
    """The identifier; None: the room has this store alone."""
    value: R


Work: TypeAlias = Callable[[ChosenStore], Awaitable[R]]


@dataclass
class Session:
    """A room, the stores that a command works on, and an event loop to run verbs in.

    A room with one store is the simple case: its errors are raised. With many stores, those that fail are `failures`,
    which the end of the session shows; the command then exits with 1.
    """

    room: Postroom
    is_declared: bool
    keys: Sequence[str] | None = None
    """The identifiers that the user chose; None: all stores."""
    json: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    """Error texts by identifier."""
    failures_are_shown: bool = False
    _notes: set[str | None] = field(default_factory=set)
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def __post_init__(self) -> None:
        self.is_many = has_many_stores(self.room)
        if self.keys and not self.is_many:
            raise typer.BadParameter("there is one store here: leave it out", param_hint="--store")

    def each(
        self, work: Work[R], *, only: Collection[str | None] | None = None, parallel: int = DEFAULT_PARALLEL
    ) -> list[Visited[R]]:
        """Calls `work` for each chosen store. Returns the results of those that did not fail.

        `only`: of the chosen stores, those of an earlier call.
        """
        return self.wait(self._each(work, only, parallel))

    async def _each(self, work: Work[R], only: Collection[str | None] | None, parallel: int) -> list[Visited[R]]:
        visited: list[ChosenStore] = []

        async def visit(store: Any) -> R:
            visited.append(ChosenStore(self.room, store.name if self.is_many else None, store, self.is_declared))
            return await work(visited[-1])

        if not self.is_many:
            done = [Visited(None, await visit(self.room.store))]
        else:
            keys = [key for key in await self.chosen() if only is None or key in only]
            with progress_bar(len(keys), quiet=self.json) as advance:
                results = await self.room.router.each(visit, keys=keys, parallel=parallel, progress=lambda _: advance())
            done = [Visited(result.store, cast("R", result.value)) for result in results if not self._failed(result)]
        self._print_note(visited)
        return done

    def _print_note(self, visited: Sequence[ChosenStore]) -> None:
        """Prints the remark about a box, if it holds for all stores, once."""
        if visited and all(store.note for store in visited) and visited[0].note not in self._notes:
            self._notes.add(visited[0].note)
            others = f", as in {counted(len(visited) - 1, 'other store')}" if len(visited) > 1 else ""
            typer.echo(f"{visited[0].note}{others}", err=True)

    async def chosen(self) -> list[str]:
        """Returns the identifiers of the stores that the command works on. Raises StoreNotFound for an unknown one."""
        await self.room.refresh()
        router = self.room.router
        keys = [*router.keys, *router.left_out] if self.keys is None else list(dict.fromkeys(self.keys))
        left_out = {key: text for key, text in router.left_out.items() if key in keys and key not in router}
        self.failures.update(left_out)
        return [router.store(key).name for key in dict.fromkeys(keys) if key not in left_out]

    def _failed(self, result: StoreResult[R]) -> bool:
        """Records the error of a store. A wrong argument is no error of a store and is raised, as is a bug."""
        if result.error is None:
            return False
        if isinstance(result.error, ArgumentTypeError | ArgumentValueError) or not is_for_the_user(result.error):
            raise result.error
        self.failures[result.store] = self.room.store.errors.for_log(text_of(result.error))
        return True

    def check_one(self, what: str) -> None:
        """Raises if the command works on several stores. `what`: the thing that belongs to one store."""
        if self.is_many and len(count := self.wait(self.chosen())) != 1:
            raise typer.BadParameter(
                f"{what} belongs to one of these {counted(len(count), 'store')}: say which", param_hint="--store"
            )

    def wait(self, work: Awaitable[R]) -> R:
        """Runs an async function and returns its result. Ctrl-C interrupts it."""

        async def run() -> R:
            return await work

        return self._runner.run(run())

    def print_json(self, visited: Sequence[Visited[dict[str, object]]], **more: object) -> None:
        """Prints the results: of one store alone, or of each of many stores with those that failed."""
        if not self.is_many:
            print_json(visited[0].value)
            return
        failed = [{"store": key, "error": text} for key, text in self.failures.items()]
        print_json({**more, "stores": [{"store": key, **value} for key, value in visited], "failed": failed})
        self.failures_are_shown = True

    def print_each(self, texts: Sequence[Visited[str]], *, empty: str) -> None:
        """Prints a text for each store: with many, under its identifier and only if there is one."""
        if not self.is_many:
            typer.echo(texts[0].value or empty)
            return
        for key, text in texts:
            if text:
                typer.echo("\n".join((f"{key}:", *(f"  {line}" for line in text.splitlines()))))
        if not any(text for _, text in texts):
            typer.echo(empty)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._runner:
            self.wait(self.room.close())
        if kind is None and self.failures:
            if not self.failures_are_shown:
                for key, text in self.failures.items():
                    typer.echo(f"postroom: store {key!r}: {text}", err=True)
                typer.echo(f"postroom: {counted(len(self.failures), 'store')} failed", err=True)
            raise typer.Exit(1)


PAGE = 1000


async def first(messages: AsyncIterator[AnyMessage], most: int | None) -> list[AnyMessage]:
    """Returns the first messages, or all."""
    found: list[AnyMessage] = []
    async for message in messages:
        if most is not None and len(found) == most:
            break
        found.append(message)
    return found


async def pages(find: Callable[..., Awaitable[list[AnyMessage]]], after: int = 0) -> AsyncIterator[AnyMessage]:
    """Yields all messages that `find` returns, page by page and without their payloads, since there may be many."""
    while True:
        page = await find(after=after, limit=PAGE)
        for message in page:
            yield message.with_payload(None)
        if len(page) < PAGE:
            return
        after = page[-1].id
