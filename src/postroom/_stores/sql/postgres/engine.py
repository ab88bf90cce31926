"""PostgreSQL: names of tables, native types, and its work queue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._stores.sql.engine import MAX_SHARED_ENGINES
from postroom._stores.sql.postgres.arrays import array_text
from postroom._stores.sql.postgres.notifications import PostgresNotifications
from postroom._stores.sql.postgres.queue import build_queue
from postroom._stores.sql.queue import Queue
from postroom._stores.sql.statements import OUR_NAME, Parameters, load, load_migrations
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.spi import Claim

_NOW = re.compile(r"(?<![:\w]):now\b")
_LONGEST_NAME = 63


class PostgresEngine:
    """PostgreSQL 13 and later."""

    name = "postgresql"
    concurrent = True

    def __init__(
        self, prefix: str = DEFAULT_PREFIX, *, schema: str | None = None, own_clock: bool = False, notifies: bool = True
    ) -> None:
        """`own_clock`: the time is a parameter, for tests; otherwise it is the time of the server. `schema`: None
        leaves it to the search_path of the connection."""
        self.prefix = prefix
        self.schema = check_schema(schema)
        self.tables = f"{prefix}* tables" + (f" in schema {schema}" if schema else "")
        self.channel = f"{schema}.{prefix}wake"[:_LONGEST_NAME] if schema else f"{prefix}wake"
        self.notifies = notifies
        now = ":now::timestamptz" if own_clock else "statement_timestamp()"
        self.statements = load(__package__, lambda text: _NOW.sub(now, self.rename(text)))
        self.migrations = load_migrations(__package__, self.rename)
        self.preamble = (f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}",) if schema else ()
        self._own_clock = own_clock

    def make_queue(self) -> Queue:
        notifications = PostgresNotifications(self.channel, enabled=self.notifies)
        return build_queue(self, notifications, uses_frontier=not self._own_clock)

    def rename(self, text: str) -> str:
        """Quotes names other than the default, since they may have capital letters."""
        if self.prefix == DEFAULT_PREFIX and self.schema is None:
            return text
        where = f"{quoted(self.schema)}." if self.schema else ""
        return OUR_NAME.sub(lambda name: _qualified(name, where, self.prefix), text)

    def time(self, moment: datetime | None) -> datetime | None:
        return moment

    def duration(self, delta: timedelta) -> timedelta:
        return delta

    def moment(self, stored: datetime) -> datetime:
        return stored if stored.tzinfo is UTC else stored.astimezone(UTC)

    def array(self, values: Sequence[object]) -> Sequence[object]:
        return values

    def content(self, payload: str | bytes) -> bytes:
        return payload.encode() if isinstance(payload, str) else payload

    def payload(self, stored: bytes, format_: str) -> str | bytes:
        return stored if format_ == "bytes" else stored.decode()

    def claims(self, claims: Sequence[Claim]) -> Parameters:
        owners = [claim.owner for claim in claims]
        if all(owner is owners[0] for owner in owners):  # one item stands for all
            owners = owners[:1]
        return {
            "ids": array_text([claim.id for claim in claims]),
            "fences": array_text([claim.fence for claim in claims]),
            "owners": array_text(map(str, owners)),
        }

    def token(self, owner: UUID) -> UUID:
        return owner

    def owner(self, stored: UUID) -> UUID:
        return stored if type(stored) is UUID else UUID(int=stored.int)

    def split(self, script: str) -> list[str]:
        """Splits at semicolons: the migrations have none except at the end of a statement."""
        parts = re.sub(r"--.*", "", script).split(";\n")
        return [part.strip().rstrip(";") for part in parts if part.strip()]


@lru_cache(maxsize=MAX_SHARED_ENGINES)
def shared_engine(prefix: str, schema: str | None, *, own_clock: bool, notifies: bool) -> PostgresEngine:
    """Returns the engine of all stores whose tables have these names."""
    return PostgresEngine(prefix, schema=schema, own_clock=own_clock, notifies=notifies)


def _qualified(name: re.Match[str], where: str, prefix: str) -> str:
    makes_index = name.string.endswith("INDEX ", 0, name.start())  # an index is always in the schema of its table
    return f'{"" if makes_index else where}"{prefix}{name[1]}"'


def quoted(name: str | None) -> str:
    return '"' + (name or "").replace('"', '""') + '"'


def check_schema(schema: object) -> str | None:
    if schema is None:
        return None
    if not isinstance(schema, str):
        raise ArgumentTypeError(f"schema must be a str, not {type(schema).__name__}")
    if not schema or "\x00" in schema or "'" in schema or len(schema.encode()) > _LONGEST_NAME:
        raise ArgumentValueError(
            f"schema {schema!r} cannot name a schema: use 1 to {_LONGEST_NAME} bytes, without quotes or NUL characters"
        )
    return schema
