"""A database for one test, as Postroom and as SQLAlchemy address it, and all that is in it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, NullPool, create_engine

from postroom.sync import Postroom
from tests.postgres import create_database, with_driver


@dataclass(frozen=True)
class Kind:
    """An engine, and names for the tables."""

    dialect: str
    names: dict[str, Any] = field(default_factory=dict)
    """`schema` and `prefix`, as a room and `postroom.sqlalchemy` take them."""

    def __str__(self) -> str:
        return "-".join([self.dialect, *self.names])

    @property
    def schema(self) -> str | None:
        return self.names.get("schema")

    @property
    def prefix(self) -> str:
        return str(self.names.get("prefix", "postroom_"))

    def create(self, folder: Path) -> Database:
        files = len(list(folder.iterdir()))
        url = f"sqlite:///{folder}/{files}.db" if self.dialect == "sqlite" else create_database()
        return Database(self, url)


KINDS = [
    Kind("postgresql"),
    Kind("postgresql", {"schema": 'the "Mail"', "prefix": "Acme_"}),
    Kind("postgresql", {"schema": "mail"}),
    Kind("sqlite"),
    Kind("sqlite", {"prefix": "acme_"}),
]


@dataclass(frozen=True)
class Database:
    """A new one, without tables."""

    kind: Kind
    url: str

    def room(self) -> Postroom:
        return Postroom(self.url, **self.kind.names)

    def migrate(self) -> Database:
        with self.room() as room:
            room.migrate()
        return self

    @property
    def sqlalchemy_url(self) -> str:
        return with_driver(self.url, "psycopg")

    @property
    def engine(self) -> Engine:
        return create_engine(self.sqlalchemy_url, poolclass=NullPool)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        if self.kind.dialect == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file, file:
                yield file
        else:
            with psycopg.connect(self.url) as connection:
                yield connection

    def contents(self) -> dict[str, Any]:
        """All that a migration can make, and what it wrote; without what Alembic keeps for itself."""
        return _in_sqlite(self) if self.kind.dialect == "sqlite" else _in_postgres(self)


_CLASS = "pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
_OURS = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND c.relname !~ '^alembic_version'"
_POSTGRES = {
    "relations": f"""
        SELECT n.nspname, c.relname, c.relkind, c.reloptions FROM {_CLASS} WHERE {_OURS} ORDER BY 1, 2""",
    "columns": f"""
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname,
               pg_get_expr(d.adbin, d.adrelid)
          FROM {_CLASS}
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND c.relkind IN ('r', 'v')
          LEFT JOIN pg_collation l ON l.oid = a.attcollation
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE {_OURS} ORDER BY 1, 2""",
    "constraints": f"""
        SELECT o.conname, pg_get_constraintdef(o.oid) FROM pg_constraint o JOIN ({_CLASS}) ON c.oid = o.conrelid
         WHERE {_OURS} ORDER BY 1""",
    "indexes": f"""
        SELECT c.relname, pg_get_indexdef(c.oid) FROM {_CLASS} WHERE c.relkind = 'i' AND {_OURS} ORDER BY 1""",
    "views": f"""
        SELECT c.relname, pg_get_viewdef(c.oid) FROM {_CLASS} WHERE c.relkind = 'v' AND {_OURS} ORDER BY 1""",
    "sequences": """
        SELECT schemaname, sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle,
               cache_size
          FROM pg_sequences ORDER BY 1, 2""",
}


def _in_postgres(database: Database) -> dict[str, Any]:
    found: dict[str, Any] = {name: database.execute(query) for name, query in _POSTGRES.items()}
    for schema, table in [(row[0], row[1]) for row in found["relations"] if row[1] == f"{database.kind.prefix}schema"]:
        found["versions"] = database.execute(f"""SELECT * FROM "{schema.replace('"', '""')}"."{table}" ORDER BY 1""")
    return found


def _in_sqlite(database: Database) -> dict[str, Any]:
    found: dict[str, Any] = {}
    everything = (
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND name <> 'alembic_version'"
    )
    for type_, name, sql in database.execute(f"{everything} ORDER BY name"):
        plain = " ".join(re.sub(r"--.*", "", sql).split())
        about = [type_, plain if type_ == "view" else plain.partition(" WHERE ")[2], plain.endswith("WITHOUT ROWID")]
        for pragma in ("table_info", "foreign_key_list", "index_xinfo"):
            about.append(database.execute(f"PRAGMA {pragma}('{name}')"))
        if name.endswith(("_schema", "_sequence")):
            about.append(database.execute(f"SELECT * FROM {name} ORDER BY 1"))
        found[name] = about
    return found
