"""SQLite: times are integers, lists are JSON text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._stores.sql.queue import QueuePrograms
from postroom._stores.sql.statements import DEFAULT_PREFIX, load, load_migrations, with_prefix

FOLDER = "engines/sqlite"
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
        self.statements = load(FOLDER, self.rename)
        self.migrations = load_migrations(FOLDER, self.rename)
        self.queue = QueuePrograms(self)

    def time(self, moment: datetime | None) -> int | None:
        return None if moment is None else to_microseconds(moment)

    def duration(self, delta: timedelta) -> int:
        return delta // _MICROSECOND

    def moment(self, stored: Any) -> datetime:
        return from_microseconds(stored)

    def array(self, values: list[Any]) -> str:
        return json.dumps(values)

    def content(self, payload: str | bytes) -> str | bytes:
        return payload

    def payload(self, stored: Any, format_: str) -> str | bytes:
        return stored

    def claims(self, fences: Mapping[int, int]) -> dict[str, Any]:
        return {"claims": json.dumps(fences)}  # an object: its keys and values need no extraction

    def token(self, owner: UUID) -> str:
        return str(owner)

    def owner(self, stored: Any) -> UUID:
        return UUID(stored)

    def split(self, script: str) -> list[str]:
        statements, current = [], ""
        for line in script.splitlines():
            current += line + "\n"
            if sqlite3.complete_statement(current):
                statements.append(current.strip())
                current = ""
        return statements
