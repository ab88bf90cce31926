"""What an engine is: data, and how values of ours look in its columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from postroom._stores.sql.statements import Migration, Text

if TYPE_CHECKING:
    from postroom._stores.sql.queue import QueuePrograms


class Engine(Protocol):
    """An engine is data; a driver is I/O. Programs see only this."""

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def schema(self) -> str | None:
        """Where the tables are, if not wherever a connection looks."""

    @property
    def statements(self) -> Mapping[str, Text]: ...
    @property
    def migrations(self) -> tuple[Migration, ...]: ...
    @property
    def tables(self) -> str:
        """What our tables are called, in words."""

    @property
    def queue(self) -> QueuePrograms:
        """The programs of the work queue, as they are best here."""

    @property
    def concurrent(self) -> bool:
        """Whether writers work side by side."""

    @property
    def notifies(self) -> bool:
        """Whether its programs tell others that there is work."""

    @property
    def preamble(self) -> tuple[str, ...]:
        """What comes before the first migration, such as the making of a schema."""

    def rename(self, text: str) -> str:
        """Text of ours, with the names that the tables have in this database."""

    def time(self, moment: datetime | None) -> Any:
        """A moment as the engine stores it; moments so stored can be compared and added to durations."""

    def duration(self, delta: timedelta) -> Any: ...

    def moment(self, stored: Any) -> datetime:
        """A moment as we use it; the inverse of `time`."""

    def array(self, values: list[Any]) -> Any:
        """A list as a parameter."""

    def content(self, payload: str | bytes) -> Any:
        """A payload as the engine stores it."""

    def payload(self, stored: Any, format_: str) -> str | bytes:
        """A payload as it was given; the inverse of `content`."""

    def claims(self, fences: Mapping[int, int]) -> dict[str, Any]:
        """Ids with their fences, in id order, as parameters."""

    def token(self, owner: UUID) -> Any:
        """An owner as the engine stores it."""

    def owner(self, stored: Any) -> UUID:
        """An owner as we use it; the inverse of `token`."""

    def split(self, script: str) -> list[str]:
        """The single statements of a migration."""
