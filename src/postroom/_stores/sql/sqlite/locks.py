"""The one lock of SQLite: a transaction that writes has the write lock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from postroom._stores.sql.endings import DeadLetter
from postroom._stores.sql.finding import Finding
from postroom._stores.sql.join_rows import JoinRow
from postroom._stores.sql.locks import JoinLock
from postroom._stores.sql.rows import KnownKey
from postroom._stores.sql.statements import SqlProgram, Statement
from postroom.spi import Box, Filter, Key, StoredMessage


class WriteLock:
    """The transaction of a program has the write lock, so rows need no locks: no other transaction changes them.

    Our own transactions take it with BEGIN IMMEDIATE, and a caller's with the first write. A caller's transaction that
    reads first cannot write any more once another has written (SQLITE_BUSY), so a program that reads first calls
    `writes`.
    """

    def __init__(self, finding: Finding) -> None:
        self._finding = finding

    def writes(self) -> SqlProgram[None]:
        yield Statement("reserve_ids", {"count": 0})

    def collapse_keys(self, box: Box, keys: Sequence[str]) -> SqlProgram[None]:
        yield from ()  # the insert that follows takes the lock

    def keys(self, box: Box, keys: Sequence[Key], *, progress: bool) -> SqlProgram[None]:
        yield from ()  # `put`, `record` and `mark` write before they read a key

    def key(self, box: Box, key: Key, *, progress: bool) -> SqlProgram[KnownKey | None]:
        names = {"box": box.key, "source": key.source, "message_id": key.message_id}
        found = yield Statement("find_key", names)
        return KnownKey(*found[0]) if found else None

    def join(self, box: Box, join: UUID, lock: JoinLock) -> SqlProgram[JoinRow | None]:
        found = yield Statement("find_join", {"box": box.key, "id": str(join)})
        return JoinRow.of(found[0]) if found else None

    def blocked_ends(self, box: Box, ids: Sequence[int]) -> SqlProgram[set[int]]:
        yield from ()
        return set()

    def waiting(self, box: Box, which: Filter) -> SqlProgram[list[StoredMessage]]:
        return (yield from self._finding.find_waiting(box, which))

    def undeliverable(self, box: Box, letters: Sequence[DeadLetter]) -> SqlProgram[list[DeadLetter]]:
        yield from ()
        return list(letters)
