"""When the next messages of boxes are due, and the soft lease of the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import Parameters, SqlProgram, Statement
from postroom.spi import Attendance


class AttendResult(NamedTuple):
    """What the statement `attend` has found."""

    attendance: Attendance
    is_free: bool
    """Whether the soft lease is free, and the statement has not taken it."""


class Attending:
    """Reads what is due, and takes the soft lease."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, boxes: Sequence[str], process: UUID, lease: timedelta) -> SqlProgram[AttendResult]:
        """Reads what is due and the soft lease. Takes the lease if the statement of the engine can."""
        parameters = {"boxes": self._engine.array(list(boxes)), **self._lease(process, lease)}
        due: dict[str, float] = {}
        free_in, is_free = None, False
        for box, seconds, free in (yield Statement("attend", parameters, autocommit=True)):
            if box is None:
                free_in, is_free = seconds, bool(free)
            elif seconds is not None:
                due[box] = seconds
        return AttendResult(Attendance(due, free_in), is_free)

    def take(self, process: UUID, lease: timedelta) -> SqlProgram[float | None]:
        """Takes the soft lease if it is still free. Returns what `Attendance.free_in` is."""
        taken = yield Statement("take_soft_lease", self._lease(process, lease))
        return None if taken else lease.total_seconds()

    def _lease(self, process: UUID, lease: timedelta) -> Parameters:
        return {"process": self._engine.token(process), "lease": self._engine.duration(lease)}
