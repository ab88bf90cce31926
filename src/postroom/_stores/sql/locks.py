"""What a program locks before it decides by what it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol
from uuid import UUID

from postroom._stores.sql.endings import DeadLetter
from postroom._stores.sql.join_rows import JoinRow
from postroom._stores.sql.rows import KnownKey
from postroom._stores.sql.statements import SqlProgram
from postroom.spi import Box, Filter, Key, StoredMessage

JoinLock = Literal["update", "attach"]


class Locks(Protocol):
    """The locks of an engine. What a method returns cannot change before the transaction ends, unless it says so."""

    def writes(self) -> SqlProgram[None]:
        """Locks what a program that reads first must have before it can write."""

    def collapse_keys(self, box: Box, keys: Sequence[str]) -> SqlProgram[None]:
        """Lets one transaction at a time put messages with these collapse keys."""

    def keys(self, box: Box, keys: Sequence[Key], *, progress: bool) -> SqlProgram[None]:
        """Locks the messages that have these keys. `progress`: their queue rows too."""

    def key(self, box: Box, key: Key, *, progress: bool) -> SqlProgram[KnownKey | None]:
        """Locks the message that has this key, and returns it; None if the key is new.

        Without `progress` the queue row of a waiting or claimed message is not locked, so a worker can claim and settle
        it before the transaction ends.
        """

    def join(self, box: Box, join: UUID, lock: JoinLock) -> SqlProgram[JoinRow | None]:
        """Locks a join, and returns it; None if there is none.

        `update` excludes all other locks. `attach` lets several transactions attach steps to an open join.
        """

    def blocked_ends(self, box: Box, ids: Sequence[int]) -> SqlProgram[set[int]]:
        """Locks the continuations that the ends of these messages wake, for a claim, which waits for no lock.

        Returns the messages of which another transaction has locked one: to end them would wait for it.
        """

    def waiting(self, box: Box, which: Filter) -> SqlProgram[list[StoredMessage]]:
        """Locks the waiting messages that match the filter, and returns them."""

    def undeliverable(self, box: Box, letters: Sequence[DeadLetter]) -> SqlProgram[list[DeadLetter]]:
        """Locks messages that a claim found to be undeliverable, and returns those that still are."""
