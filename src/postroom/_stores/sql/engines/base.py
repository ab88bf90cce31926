"""What an engine is: data, and how values of ours look in its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from postroom._stores.sql.statements import Text


@dataclass(frozen=True)
class Migration:
    """One step of the schema. The number and the name are the same in every engine."""

    version: int
    name: str
    text: str


class Engine(Protocol):
    """An engine is data; a driver is I/O. Programs see only this."""

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def statements(self) -> Mapping[str, Text]: ...
    @property
    def migrations(self) -> tuple[Migration, ...]: ...

    def time(self, moment: datetime | None) -> Any:
        """A moment as the engine stores it; moments so stored can be compared and added to durations."""

    def duration(self, delta: timedelta) -> Any: ...

    def moment(self, stored: Any) -> datetime:
        """A moment as we use it; the inverse of `time`."""

    def array(self, values: list[Any]) -> Any:
        """A list as a parameter."""

    def pairs(self, values: Mapping[int, int]) -> Any:
        """Pairs of numbers as a parameter."""

    def split(self, script: str) -> list[str]:
        """The single statements of a migration."""
