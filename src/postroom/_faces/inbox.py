"""The inbox: what comes in is handled once, however often it is delivered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from postroom._faces import check, deaths
from postroom._faces.box import BoxVerbs, Claimed
from postroom._faces.transaction import NOT_GIVEN, resolve
from postroom._faces.working import Working
from postroom._kernel.message import Draft, Key
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._kernel.queries import Filter
from postroom._kernel.states import State
from postroom.spi import Mark


class InboxVerbs(BoxVerbs):
    """The verbs of an inbox beside those of every box."""

    @verb
    def already_processed(
        self,
        message_id: str,
        source: str,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        *,
        hash_algorithm: str = "sha256",
        tx: Any = NOT_GIVEN,
    ) -> Program[bool]:
        """Whether this message is done. A key that was never seen is noted as seen, in the same atomic step."""
        draft = Draft(
            *_key(message_id, source),
            hash=check.digest(hash),
            hash_algorithm=check.text("hash_algorithm", hash_algorithm, longest=32),
        )
        [sighting] = yield call(self._store.record, self.box, [draft], tx=resolve(tx, self._store))
        return sighting.state is State.DONE

    @verb
    def is_processed(self, message_id: str, source: str) -> Program[bool]:
        """Whether this message is done. Only reads."""
        key = _key(message_id, source)
        found = yield call(self._store.find, self.box, Filter(message_id=key.message_id, source=key.source))
        return bool(found) and found[-1].state is State.DONE

    @verb
    def mark_processing(self, message_id: str, source: str, *, tx: Any = NOT_GIVEN) -> Program[bool]:
        """Seen → waiting. Answers whether anything changed."""
        return (yield from self._mark(message_id, source, "processing", None, tx))

    @verb
    def mark_processed(self, message_id: str, source: str, *, tx: Any = NOT_GIVEN) -> Program[bool]:
        """Done, without a claim; a key that was never seen is done too. Ends any lease on it."""
        return (yield from self._mark(message_id, source, "processed", None, tx))

    @verb
    def mark_dead(
        self, message_id: str, source: str, *, error: str | None = None, tx: Any = NOT_GIVEN
    ) -> Program[bool]:
        """Dead, without a claim; what is done stays done. Ends any lease on it."""
        reason = check.optional_error("error", error, self._store.errors.redact)
        is_dead = yield from self._mark(message_id, source, "dead", reason, tx)
        if is_dead:
            deaths.record(self._store.name, self.box, Key(source, message_id), "marked as dead", reason)
        return is_dead

    def _mark(self, message_id: str, source: str, mark: Mark, error: str | None, tx: Any) -> Program[bool]:
        key = _key(message_id, source)
        [changed] = yield call(self._store.mark, self.box, [key], mark, error=error, tx=resolve(tx, self._store))
        return changed

    @verb
    def fail(self, owner: UUID, messages: Iterable[Claimed], error: str, *, tx: Any = NOT_GIVEN) -> Program[list[bool]]:
        """Give up on messages for good: they are dead, kept with the error, and can be replayed."""
        return (yield from self._fail(owner, messages, error, tx))


def _key(message_id: Any, source: Any) -> Key:
    return Key(check.text("source", source), check.text("message_id", message_id))


class Inbox(InboxVerbs, Working, Async, public="postroom.Inbox"):
    """An inbox for async code. `room.inbox()` makes one."""


class SyncInbox(InboxVerbs, Sync, public="postroom.sync.Inbox"):
    """An inbox for sync code: `postroom.sync.Inbox`."""
