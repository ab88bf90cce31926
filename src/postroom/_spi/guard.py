"""The optional protocol of stores that have guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from postroom._kernel.guard import Begin, Begun
from postroom._kernel.policy import Box


@runtime_checkable
class GuardStore(Protocol):
    """Stores with `features.guard`: they begin executions that a guard protects.

    A record of a guard is a message of a box of the kind `guard`. `settle`, `renew` and `find` do the rest.
    """

    async def begin(self, box: Box, begins: Sequence[Begin]) -> list[Begun]:
        """Begins executions: claims the records with the keys of `begins` in `box`, and inserts those that are not
        there.

        A record whose deduplication window has passed is not there. `decide_begin` is the rule for the others. A claim
        sets the owner, the end of the lease (`NO_END` for a lease of None), `last_seen`, and a fence that is higher
        than all earlier fences of the record. If two items have the same key, the first is decided first. Returns, for
        each item, the status of its key.
        """
