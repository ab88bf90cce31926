"""SQLite: times are integers, lists are JSON text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._stores.sql.engines.base import Migration
from postroom._stores.sql.statements import DEFAULT_PREFIX, load, read, rename

FOLDER = "engines/sqlite"
_MICROSECOND = timedelta(microseconds=1)


class SqliteEngine:
    """SQLite 3.35 and later, for RETURNING."""

    name = "sqlite"

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = prefix
        self.statements = load(FOLDER, prefix)
        self.migrations = tuple(self._read_migrations())

    def _read_migrations(self) -> list[Migration]:
        found = []
        for file in sorted(read(f"{FOLDER}/migrations").iterdir(), key=lambda file: file.name):
            if file.name.endswith(".sql"):
                number, _, name = file.name.removesuffix(".sql").partition("_")
                found.append(Migration(int(number), name, rename(file.read_text("utf-8"), self.prefix)))
        return found

    def time(self, moment: datetime | None) -> int | None:
        return None if moment is None else to_microseconds(moment)

    def duration(self, delta: timedelta) -> int:
        return delta // _MICROSECOND

    def moment(self, stored: Any) -> datetime:
        return from_microseconds(stored)

    def array(self, values: list[Any]) -> str:
        return json.dumps(values)

    def pairs(self, values: Mapping[int, int]) -> str:
        return json.dumps(values)  # an object: its keys and values need no extraction

    def split(self, script: str) -> list[str]:
        statements, current = [], ""
        for line in script.splitlines():
            current += line + "\n"
            if sqlite3.complete_statement(current):
                statements.append(current.strip())
                current = ""
        return statements
