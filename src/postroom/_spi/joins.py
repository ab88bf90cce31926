"""The protocol of stores with joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from postroom._kernel.joins import Join, JoinDraft, JoinFilter, JoinStep, JoinWait
from postroom._kernel.message import Draft, Key, Receipt
from postroom._kernel.policy import Box
from postroom._spi.verbs import Tx, reads

Step: TypeAlias = int | Key
"""A message that is a step of a join: its id in the store, or its key."""


@runtime_checkable
class JoinStore(Protocol):
    """Stores with `features.joins`. A join and its steps belong to one box.

    A step has ended if its message is done or dead, or if `report_step` says so. A continuation is a message that is
    not claimed before its join has ended; `claim` finds this out. A join that is not there raises JoinNotFound.
    """

    async def start_join(self, box: Box, draft: JoinDraft, *, tx: Tx = None) -> None:
        """Stores a new join. A second call with the same id changes nothing. `tx` is the caller's transaction."""

    async def attach_steps(self, box: Box, join: UUID, steps: Sequence[Step], *, tx: Tx = None) -> list[bool]:
        """Makes messages of `box` steps of `join`. `tx` is the caller's transaction.

        Returns True for each of `steps` that was not a step before. Raises JoinEnded, JoinFull, MessageNotFound if a
        message is not in this box, or ArgumentValueError if one is the continuation of the join; then nothing is
        attached.
        """

    async def report_step(self, box: Box, join: UUID, step: Step, *, failed: bool, tx: Tx = None) -> bool:
        """Ends a pending step of `join` in `box`, whatever becomes of its message. `tx` is the caller's transaction.

        Returns True if `step` was pending; its status is then `failed` or completed. Raises MessageNotFound if the
        message is not a step.
        """

    async def put_wait(self, box: Box, draft: Draft, wait: JoinWait, *, tx: Tx = None) -> Receipt:
        """Stores the continuation of a join as a message of `box`, unless the key of `draft` is known.

        When the join has ended, the message gets topic and payload of a follow-up of `wait` and can be claimed. Without
        a follow-up it is done with the ending `joined`, or dead if the join has failed. `tx` is the caller's
        transaction. Returns the receipt. Raises JoinEnded if the join has ended.
        """

    async def seal_join(self, box: Box, join: UUID, *, tx: Tx = None) -> bool:
        """Ends the attaching of steps to an open `join` of `box`. `tx` is the caller's transaction.

        Returns True if it was not sealed before. Raises JoinEnded if the join has ended or has `expected_steps`.
        """

    async def cancel_join(self, box: Box, join: UUID, *, tx: Tx = None) -> bool:
        """Ends `join` in `box` as cancelled, and its waiting continuation. Its steps go on. `tx` is the caller's
        transaction.

        Returns True if the join was pending.
        """

    @reads
    async def find_joins(self, box: Box, which: JoinFilter) -> list[Join]:
        """Returns the joins of `box` that match `which`."""

    @reads
    async def find_steps(self, box: Box, join: UUID, *, after: int = 0, limit: int = 100) -> list[JoinStep]:
        """Returns steps of `join` in `box`, in id order: at most `limit`, with ids above `after`."""
