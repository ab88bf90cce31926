"""SQLite: times are integers, lists are JSON text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import UUID

from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._stores.sql.engine import MAX_SHARED_ENGINES
from postroom._stores.sql.queue import Queue
from postroom._stores.sql.sqlite.queue import build_queue
from postroom._stores.sql.statements import Parameters, load, load_migrations, with_prefix
from postroom.spi import Claim

_MICROSECOND = timedelta(microseconds=1)


class SqliteEngine:
    """SQLite 3.35 and later, for RETURNING."""

    name = "sqlite"
    schema = None
    preamble = ()
    concurrent = False
    notifies = False

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = prefix
        self.tables = f"{prefix}* tables"
        self.rename = with_prefix(prefix)
        self.statements = load(__package__, self.rename)
        self.migrations = load_migrations(__package__, self.rename)

    def make_queue(self) -> Queue:
        return build_queue(self)

    def time(self, moment: datetime | None) -> int | None:
        return None if moment is None else to_microseconds(moment)

    def duration(self, delta: timedelta) -> int:
        return delta // _MICROSECOND

    def moment(self, stored: int) -> datetime:
        return from_microseconds(stored)

    def array(self, values: Sequence[object]) -> str:
        return json.dumps(values)

    def content(self, payload: str | bytes) -> str | bytes:
        return payload

    def payload(self, stored: str | bytes, format_: str) -> str | bytes:
        return stored

    def claims(self, claims: Sequence[Claim]) -> Parameters:
        owner, text = None, ""
        values: dict[int, str] = {}
        for claim in claims:
            if claim.owner is not owner:  # mostly all have the same, and to format it takes a microsecond
                owner, text = claim.owner, f" {claim.owner}"
            values[claim.id] = f"{claim.fence}{text}"
        return {"claims": json.dumps(values)}  # json_each reads keys and values of an object without further calls

    def token(self, owner: UUID) -> str:
        return str(owner)

    def owner(self, stored: str) -> UUID:
        return UUID(stored)

    def split(self, script: str) -> list[str]:
        statements, current = [], ""
        for line in script.splitlines():
            current += line + "\n"
            if sqlite3.complete_statement(current):
                statements.append(current.strip())
                current = ""
        return statements


@lru_cache(maxsize=MAX_SHARED_ENGINES)
def shared_engine(prefix: str = DEFAULT_PREFIX) -> SqliteEngine:
    """Returns the engine of all stores whose tables have this prefix."""
    return SqliteEngine(prefix)
