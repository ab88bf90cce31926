"""What an engine is: statements, migrations, a queue, and the conversion of values to its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import UUID

from postroom._stores.sql.statements import Migration, Parameters, StoredTime, Text
from postroom.spi import Claim

if TYPE_CHECKING:
    from postroom._stores.sql.queue import Queue

MAX_SHARED_ENGINES = 64
"""Engines that a process keeps, of each kind. An engine takes 80 KB, and up to 2 ms to make."""
Stored: TypeAlias = Any
"""A value as the engine stores it."""


class Engine(Protocol):
    """A kind of database, and the names of its tables. It has no I/O: a driver runs its programs.

    It does not change, so that the stores of many databases share one.
    """

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def schema(self) -> str | None:
        """The schema of the tables; None: the one that the connection finds first."""

    @property
    def statements(self) -> Mapping[str, Text]: ...
    @property
    def migrations(self) -> tuple[Migration, ...]: ...
    @property
    def tables(self) -> str:
        """The tables in words, for error messages."""

    @property
    def concurrent(self) -> bool:
        """Whether several transactions can write at the same time."""

    @property
    def notifies(self) -> bool:
        """Whether its programs notify workers of other processes."""

    @property
    def preamble(self) -> tuple[str, ...]:
        """Statements that run before the first migration, such as CREATE SCHEMA."""

    def make_queue(self) -> Queue:
        """Returns the programs of the work queue, for one store: they remember what they did last in its database."""

    def rename(self, text: str) -> str:
        """Returns SQL text with the names that the tables have in this database."""

    def time(self, moment: datetime | None) -> StoredTime:
        """Returns a time as the engine stores it. Stored times can be compared, and durations can be added to them."""

    def duration(self, delta: timedelta) -> Stored:
        """Returns a duration that can be added to a stored time."""

    def moment(self, stored: StoredTime) -> datetime:
        """Returns a stored time as a datetime in UTC: the inverse of `time`."""

    def array(self, values: Sequence[object]) -> object:
        """Returns a list as a parameter."""

    def content(self, payload: str | bytes) -> object:
        """Returns a payload as the engine stores it."""

    def payload(self, stored: Stored, format_: str) -> str | bytes:
        """Returns a stored payload as it was put: the inverse of `content`."""

    def claims(self, claims: Sequence[Claim]) -> Parameters:
        """Returns ids, owners and fences of claims, which come in id order, as parameters of a statement."""

    def token(self, owner: UUID) -> object:
        """Returns an owner as the engine stores it."""

    def owner(self, stored: Stored) -> UUID:
        """Returns a stored owner as a UUID: the inverse of `token`."""

    def split(self, script: str) -> list[str]:
        """Returns the statements of a migration, one by one."""
