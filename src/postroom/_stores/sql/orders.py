"""The recorded order of each box, as programs."""

from __future__ import annotations

from postroom._kernel.program import Program
from postroom._stores.sql.queue import QueuePrograms
from postroom._stores.sql.statements import Statement
from postroom.spi import Box


class OrderPrograms:
    """The verb of Ordered, as programs."""

    def __init__(self, queue: QueuePrograms) -> None:
        self._queue = queue

    def recorded(self, box: Box) -> Program[bool | None]:
        """Whether the box is recorded as FIFO; None where no order is recorded."""
        found = yield Statement("box_order", {"box": box.key})
        return bool(found[0][0]) if found else None

    def record(self, box: Box, *, change: bool) -> Program[bool | None]:
        """Record the order of the box where none is recorded, or where it changes. Of two that record at the same time,
        the first decides: the other reads what it has recorded."""
        statement = "change_order" if change else "record_order"
        yield Statement(statement, {"box": box.key, "fifo": int(box.order.fifo)})
        return (yield from self.recorded(box))

    def in_callers_transaction(self, box: Box, *, change: bool) -> Program[bool | None]:
        """Only read, unless the order changes: others that record the order of the box would wait for the caller."""
        yield from self._queue.lock_writes()
        return (yield from self.record(box, change=True)) if change else (yield from self.recorded(box))
