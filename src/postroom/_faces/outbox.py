"""The outbox: what goes out commits with the change that it reports, and is delivered until acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from postroom._faces.box import BoxVerbs, Claimed
from postroom._faces.transaction import NOT_GIVEN
from postroom._faces.working import Working
from postroom._kernel.program import Async, Program, Sync, verb


class OutboxVerbs(BoxVerbs):
    """The verbs of an outbox beside those of every box."""

    @verb
    def fail(
        self, owner: UUID, messages: Iterable[Claimed], error: str = "", *, tx: Any = NOT_GIVEN
    ) -> Program[list[bool]]:
        """Give up on messages for good: they are dead, kept with the error, and can be replayed."""
        return (yield from self._fail(owner, messages, error, tx))


class Outbox(OutboxVerbs, Working, Async, public="postroom.Outbox"):
    """An outbox for async code. `room.outbox()` makes one."""


class SyncOutbox(OutboxVerbs, Sync, public="postroom.sync.Outbox"):
    """An outbox for sync code: `postroom.sync.Outbox`."""
