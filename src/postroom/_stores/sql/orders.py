"""The recorded order of each box."""

from __future__ import annotations

from postroom._stores.sql.locks import Locks
from postroom._stores.sql.statements import SqlProgram, Statement
from postroom.spi import Box


class Orders:
    """Reads and records whether a box is FIFO."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    def recorded(self, box: Box) -> SqlProgram[bool | None]:
        """Returns whether the box is recorded as FIFO; None if no order is recorded."""
        found = yield Statement("read_order", {"box": box.key})
        return bool(found[0][0]) if found else None

    def record(self, box: Box, *, change: bool) -> SqlProgram[bool | None]:
        """Records the order of the box if none is recorded, or if `change`. If two transactions record at the same
        time, the first decides, and the second returns what the first has recorded."""
        statement = "change_order" if change else "record_order"
        yield Statement(statement, {"box": box.key, "fifo": int(box.order.fifo)})
        return (yield from self.recorded(box))

    def record_in_caller_tx(self, box: Box, *, change: bool) -> SqlProgram[bool | None]:
        """Only reads, unless the order changes: another transaction that records this box would wait for the caller."""
        yield from self._locks.writes()
        return (yield from self.record(box, change=True)) if change else (yield from self.recorded(box))
