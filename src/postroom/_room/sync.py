"""The room for sync code."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from postroom._boxes.guard.guard import SyncGuard
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.inbox import SyncInbox
from postroom._boxes.outbox import SyncOutbox
from postroom._kernel.policy import Box
from postroom._kernel.program import Program, Sync, call, verb
from postroom._room.base import RoomVerbs

if TYPE_CHECKING:  # not at run time: it imports asyncio
    from postroom._many.router import SyncRouter
    from postroom._many.tenants import Tenants


class SyncPostroom(RoomVerbs[SyncInbox, SyncOutbox, SyncGuard, "SyncRouter"], Sync, public="postroom.sync.Postroom"):
    """A database with inboxes and outboxes, for sync code: `from postroom.sync import Postroom`.

    Handlers and workers exist for async code only. Use the room as a context manager, or call `close()`.
    """

    _mode = "sync"

    def _make_router(self, tenants: Tenants) -> SyncRouter:
        from postroom._many.router import SyncRouter

        return SyncRouter(tenants, self._find_box)

    def _make_inbox(self, box: Box) -> SyncInbox:
        return SyncInbox(box, self._store)

    def _make_outbox(self, box: Box) -> SyncOutbox:
        return SyncOutbox(box, self._store)

    def _make_guard(self, box: Box, policy: GuardPolicy) -> SyncGuard:
        return SyncGuard(box, policy, self._store)

    @verb
    def close(self) -> Program[None]:
        """Closes connections. Closing twice does nothing."""
        yield call(self._store.close if self._tenants is None else self._tenants.stores.close_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
