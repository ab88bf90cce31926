"""The room: one database, and the boxes in it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, Unpack

from postroom._connect import Colour, observe, open_store
from postroom._faces.inbox import Inbox, SyncInbox
from postroom._faces.options import BoxOptions, make_box
from postroom._faces.outbox import Outbox, SyncOutbox
from postroom._kernel.clock import Clock
from postroom._kernel.observer import Observer
from postroom._kernel.policy import Box
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.states import BoxKind
from postroom._stores import journal
from postroom.errors import ArgumentValueError, FeatureMissing
from postroom.spi import Features, Schema


class RoomVerbs:
    """What a room can do, in both colours."""

    _colour: ClassVar[Colour]

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Any = None,
        prefix: str = "postroom_",
        deploy_schema: bool = False,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        """A room on the database at `url` (POSTROOM_URL by default), or on a store of your own.

        `deploy_schema` makes missing tables on first use; otherwise call `migrate()` once, when you deploy. `clock`
        is for tests.
        """
        if store is None:
            store = open_store(url, colour=self._colour, prefix=prefix, deploy_schema=deploy_schema, clock=clock)
        elif url is not None:
            raise ArgumentValueError("pass a url or a store, not both")
        self.store = observe(store, (journal.write, *observers), self._colour)
        self._boxes: dict[str, tuple[Any, Any]] = {}

    @property
    def features(self) -> Features:
        return self.store.features

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store.name}>"

    def _make(self, kind: BoxKind, name: str, options: BoxOptions, face: Any) -> Any:
        """The box of this name: made once, then the same object again."""
        box: Box = make_box(kind, name, self.features, options)
        made = self._boxes.get(box.key)
        if made is None:
            self._boxes[box.key] = made = (face(box, self.store), options)
        elif options not in ({}, made[1]):
            raise ArgumentValueError(
                f"{kind} {name!r} was made with other options: say them once, then call {kind}({name!r}) alone"
            )
        return made[0]

    @verb
    def migrate(self) -> Program[list[int]]:
        """Make or update the tables; answers the versions that were applied. Safe to repeat, and to run everywhere."""
        return [] if not self._has_schema() else (yield call(self.store.migrate))

    def schema_script(self) -> str:
        """The tables as SQL text, for those who deploy schemas in their own way."""
        if not self._has_schema():
            raise FeatureMissing(f"{self.store.name} has no tables")
        return str(self.store.schema_script())

    def _has_schema(self) -> bool:
        return isinstance(self.store.store, Schema)

    @verb
    def close(self) -> Program[None]:
        """Give back connections. Closing twice is fine."""
        yield call(self.store.close)


class Postroom(RoomVerbs, Async):
    """A database with boxes in it, for async code."""

    _colour = "async"

    def inbox(self, name: str = "inbox", **options: Unpack[BoxOptions]) -> Inbox:
        inbox: Inbox = self._make("inbox", name, options, Inbox)
        return inbox

    def outbox(self, name: str = "outbox", **options: Unpack[BoxOptions]) -> Outbox:
        outbox: Outbox = self._make("outbox", name, options, Outbox)
        return outbox

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SyncPostroom(RoomVerbs, Sync):
    """A database with boxes in it, for sync code: `postroom.sync.Postroom`."""

    _colour = "sync"

    def inbox(self, name: str = "inbox", **options: Unpack[BoxOptions]) -> SyncInbox:
        inbox: SyncInbox = self._make("inbox", name, options, SyncInbox)
        return inbox

    def outbox(self, name: str = "outbox", **options: Unpack[BoxOptions]) -> SyncOutbox:
        outbox: SyncOutbox = self._make("outbox", name, options, SyncOutbox)
        return outbox

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
