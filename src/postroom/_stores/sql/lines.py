"""The rows of a FIFO line: which of them a claim can find.

The unfinished messages of a group are in line in id order. A row *sleeps* if its `available_at` is NULL: it is in no
index that a claim reads, so it costs a claim nothing. The first in line never sleeps (docs/decisions/0005 and 0010).
Every program that takes a row out of its line promotes the line in a later statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import Many, SqlProgram, Statement
from postroom.spi import Box, Draft


def line_of(box: Box, draft: Draft) -> str | None:
    """Returns the group in whose line the message is; None in a box without order, and for a message without group."""
    return draft.group if box.order.fifo else None


class Lines:
    """Wakes rows and lets them sleep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def promote(self, box: Box, groups: Iterable[str | None]) -> SqlProgram[None]:
        """Wakes the first in the line of each group, if it sleeps."""
        if lines := sorted({group for group in groups if group is not None}):
            yield Statement("promote", {"box": box.key, "groups": self._engine.array(lines)})

    def sleep(self, behind: Sequence[tuple[int, int]]) -> SqlProgram[None]:
        """Lets rows sleep. Each comes with the id of the first in its line, which wakes it when it leaves."""
        if behind:
            yield Many("sleep_behind_first", ("id", "first"), sorted(behind))

    def end_batches(self, box: Box, last_ids: Iterable[tuple[str, int]]) -> SqlProgram[None]:
        """Releases the claimed members behind the given one of each group, without counting an attempt."""
        yield Many("end_batch", ("box", "group_id", "id"), [(box.key, *item) for item in sorted(last_ids)])
