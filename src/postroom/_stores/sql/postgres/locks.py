"""Row locks and advisory locks of PostgreSQL.

The statements say what each of them locks, and why. Two rules prevent deadlocks: a queue row is locked before its
message, and several rows are locked in id order.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from postroom._kernel.policy import DELIVERY_LIMIT, EXPIRED
from postroom._stores.sql.claims import delivery_limits
from postroom._stores.sql.endings import DeadLetter
from postroom._stores.sql.finding import Finding
from postroom._stores.sql.join_rows import JoinRow
from postroom._stores.sql.locks import JoinLock
from postroom._stores.sql.rows import KnownKey
from postroom._stores.sql.statements import SqlProgram, Statement
from postroom.spi import Box, Filter, Key, StoredMessage


class RowLocks:
    """Several transactions write at the same time, so a program locks the rows by which it decides."""

    def __init__(self, finding: Finding) -> None:
        self._finding = finding

    def writes(self) -> SqlProgram[None]:
        yield from ()  # a transaction can write after it has read

    def collapse_keys(self, box: Box, keys: Sequence[str]) -> SqlProgram[None]:
        yield Statement("lock_collapse_keys", {"box": box.key, "keys": list(keys)})

    def keys(self, box: Box, keys: Sequence[Key], *, progress: bool) -> SqlProgram[None]:
        if len(keys) > 1:  # `key` locks a single one
            sources, message_ids = map(list, zip(*keys, strict=True))
            names = {"box": box.key, "source": sources, "message_id": message_ids}
            yield Statement("lock_keys", {**names, "progress": progress})

    def key(self, box: Box, key: Key, *, progress: bool) -> SqlProgram[KnownKey | None]:
        names = {"box": box.key, "source": key.source, "message_id": key.message_id}
        while True:
            found = yield Statement("lock_key" if progress else "lock_message_of_key", names)
            if not found:
                return None
            known = KnownKey(*found[0])
            if known.state is not None:  # None: the queue row has changed while the statement ran
                return known

    def join(self, box: Box, join: UUID, lock: JoinLock) -> SqlProgram[JoinRow | None]:
        names = {"box": box.key, "id": join}
        statement = "lock_join"
        if lock == "attach":
            found = yield Statement("find_join", names)
            if found and JoinRow.of(found[0]).expected_steps is None:
                statement = "share_join"
        found = yield Statement(statement, names)
        return JoinRow.of(found[0]) if found else None

    def blocked_ends(self, box: Box, ids: Sequence[int]) -> SqlProgram[set[int]]:
        if not ids or not box.can_have_joins:
            return set()
        return {id_ for (id_,) in (yield Statement("lock_continuations_now", {"ids": sorted(ids)}))}

    def waiting(self, box: Box, which: Filter) -> SqlProgram[list[StoredMessage]]:
        """Reads, locks in id order, and reads again: a message may be claimed or replaced before it is locked."""
        found = yield from self._finding.find_waiting(box, which)
        if not found:
            return []
        locked = yield Statement("lock_waiting", {"ids": sorted(message.id for message in found)})
        ids = tuple(id_ for (id_,) in locked)
        return (yield from self._finding.find(box, which._replace(ids=ids, keys=None)))

    def undeliverable(self, box: Box, letters: Sequence[DeadLetter]) -> SqlProgram[list[DeadLetter]]:
        return (yield from self.undeliverable_ids(box, [letter.id for letter in letters]))

    def undeliverable_ids(self, box: Box, ids: Sequence[int]) -> SqlProgram[list[DeadLetter]]:
        """Like `undeliverable`, for messages of which only the ids are known."""
        locked = yield Statement("lock_undeliverable", {"ids": ids, **delivery_limits(box)})
        return [DeadLetter(id_, group, EXPIRED if expired else DELIVERY_LIMIT) for id_, group, expired in locked]
