"""For users of SQLAlchemy and Alembic: our tables in your MetaData, and our migrations as steps of yours.

What the tables are is said once, in the migrations of each engine. Here their SQL is read, not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

from postroom._stores.sql.engines.postgres.engine import PostgresEngine
from postroom._stores.sql.engines.sqlite.engine import SqliteEngine
from postroom._stores.sql.schema import SchemaPrograms
from postroom._stores.sql.statements import DEFAULT_PREFIX, check_prefix
from postroom.errors import ArgumentTypeError, ArgumentValueError, ExtraMissing

try:
    from sqlalchemy import (
        BLANK_SCHEMA,
        BigInteger,
        Column,
        Connection,
        DateTime,
        ForeignKey,
        Index,
        Integer,
        LargeBinary,
        MetaData,
        SmallInteger,
        String,
        Table,
        Text,
        TextClause,
        Uuid,
        event,
        text,
    )
    from sqlalchemy.types import TypeEngine, UserDefinedType
except ImportError as error:
    raise ExtraMissing("postroom.sqlalchemy needs SQLAlchemy: pip install 'postroom[sqlalchemy]'") from error

__all__ = ["drop", "migrate", "tables"]

_ENGINES: dict[str, type[PostgresEngine | SqliteEngine]] = {
    engine.name: engine for engine in (PostgresEngine, SqliteEngine)
}


class Operations(Protocol):
    """What is needed of Alembic's `op`."""

    def execute(self, sqltext: Any, /) -> Any: ...
    def get_context(self) -> Any: ...


def tables(
    metadata: MetaData,
    *,
    dialect: str = PostgresEngine.name,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> dict[str, Table]:
    """Add Postroom's tables to your MetaData, as they are in a database of the newest version; answers them by name.

    Alembic's autogenerate then leaves them alone. `prefix` and `schema` are those of the room. `create_all()` and
    `drop_all()` work too: they make and drop the views, and record the version. A second call answers the same tables.
    """
    if not isinstance(metadata, MetaData):
        raise ArgumentTypeError(f"metadata must be a sqlalchemy.MetaData, not {type(metadata).__name__}")
    engine = _engine(dialect, prefix, schema)
    plain = _plain(dialect)
    where = f"{schema}." if schema else ""
    keys = {made[2]: f"{where}{prefix}{made[2]}" for made in map(_CREATION.match, plain) if made and made[1] == "TABLE"}
    if metadata.tables.keys() >= set(keys.values()):  # Alembic runs its env.py once for each command
        return {name: metadata.tables[key] for name, key in keys.items()}
    made = _Reader(metadata, prefix, schema).read(plain)
    _let_metadata_make_the_rest(metadata, made["schema"], engine, plain)
    return made


def migrate(
    op: Operations, *, to: int, since: int = 0, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> None:
    """In a revision of Alembic's: bring the tables from version `since` to version `to`, in its transaction.

    These are the same statements with every later Postroom, and `alembic upgrade --sql` prints them.
    """
    known = SchemaPrograms(_engine(op.get_context().dialect.name, prefix, schema))
    if not 0 <= since < to <= known.newest:
        raise ArgumentValueError(
            f"there is no way from version {since} to {to}: this Postroom knows 1 to {known.newest}, and only goes up"
        )
    for statement in known.steps(since, to):
        op.execute(_text(statement))


def drop(op: Operations, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
    """In a revision of Alembic's: drop the tables, with all messages in them."""
    dialect = op.get_context().dialect.name
    engine = _engine(dialect, prefix, schema)
    for statement in _drops(_plain(dialect)):
        op.execute(_text(engine.rename(statement)))


def _engine(dialect: str, prefix: str, schema: str | None) -> PostgresEngine | SqliteEngine:
    engine = _ENGINES.get(dialect)
    if engine is None:
        raise ArgumentValueError(f"there are no tables for {dialect!r}; this version has {' and '.join(_ENGINES)}")
    if issubclass(engine, PostgresEngine):
        return engine(check_prefix(prefix), schema=schema)
    if schema is not None:
        raise ArgumentValueError(f"{dialect} knows no schema: leave it out")
    return engine(check_prefix(prefix))


def _text(statement: str) -> TextClause:
    return text(statement.replace(":", r"\:"))  # else a colon would begin a parameter


# -- reading our own SQL -----------------------------------------------------------------------------------------------


class _Untyped(UserDefinedType[Any]):
    """A column of SQLite that takes values of any type, as they are."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return ""


_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": BigInteger(),
    "integer": Integer(),
    "smallint": SmallInteger(),
    "text": Text(),
    "varchar(100)": String(100),
    "bytea": LargeBinary(),
    "blob": LargeBinary(),
    "timestamptz": DateTime(timezone=True),
    "uuid": Uuid(),
    "": _Untyped(),
}
_CREATION = re.compile(rf"CREATE (TABLE|VIEW|SEQUENCE) {DEFAULT_PREFIX}(\w+)")
_TABLE = re.compile(
    rf"CREATE TABLE {DEFAULT_PREFIX}(?P<name>\w+) \((?P<columns>.*?)\)"
    r"(?: WITH (?P<settings>\(.*\))| (?P<rowless>WITHOUT ROWID))?",
    re.DOTALL,
)
_COLUMN = re.compile(
    rf"(?P<name>\w+) ?(?P<type>{'|'.join(map(re.escape, filter(None, _TYPES)))}|)"
    r'(?: COLLATE "(?P<collation>\w+)")?(?P<required> NOT NULL)?(?P<key> PRIMARY KEY)?'
    rf"(?: REFERENCES {DEFAULT_PREFIX}(?P<target>\w+) \(id\))?(?: DEFAULT (?P<default>\d+))?",
    re.IGNORECASE,
)
_INDEX = re.compile(
    rf"CREATE (?P<unique>UNIQUE )?INDEX {DEFAULT_PREFIX}(?P<name>\w+) ON {DEFAULT_PREFIX}(?P<table>\w+) "
    r"\((?P<columns>[\w, ]+)\)(?: WHERE (?P<condition>.+))?"
)


def _plain(dialect: str) -> list[str]:
    """The statements that make everything, with default names, without comments and line breaks."""
    steps = SchemaPrograms(_ENGINES[dialect]()).steps()
    return [" ".join(re.sub(r"--.*", "", step).split()).rstrip(";") for step in steps]


def _drops(plain: list[str]) -> list[str]:
    """What undoes them, the last first."""
    made = dict.fromkeys(found[0] for found in map(_CREATION.match, plain) if found)
    return [creation.replace("CREATE", "DROP", 1) for creation in reversed(made)]


class _Reader:
    """Makes objects of SQLAlchemy from statements."""

    def __init__(self, metadata: MetaData, prefix: str, schema: str | None) -> None:
        self._metadata = metadata
        self._prefix = prefix
        self._schema = schema or BLANK_SCHEMA  # that of the room, not the MetaData's own default
        self._tables: dict[str, Table] = {}

    def read(self, plain: list[str]) -> dict[str, Table]:
        for statement in plain:
            if found := _TABLE.fullmatch(statement):
                self._table(found)
            elif found := _INDEX.fullmatch(statement):
                self._index(found)
        return self._tables

    def _table(self, found: re.Match[str]) -> None:
        columns = map(self._column, found["columns"].split(","))
        options: dict[str, Any] = {"sqlite_with_rowid": False} if found["rowless"] else {}
        name = self._prefix + found["name"]
        self._tables[found["name"]] = Table(name, self._metadata, *columns, schema=self._schema, **options)

    def _column(self, definition: str) -> Column[Any]:
        found = _COLUMN.fullmatch(definition.strip())
        if found is None:
            raise NotImplementedError(definition)
        type_ = _TYPES[found["type"].lower()]
        return Column(
            found["name"],
            Text(collation=found["collation"]) if found["collation"] else type_,
            *([ForeignKey(self._tables[found["target"]].c.id)] if found["target"] else []),
            primary_key=found["key"] is not None,
            nullable=found["required"] is None,
            autoincrement=False,
            server_default=None if found["default"] is None else text(found["default"]),
        )

    def _index(self, found: re.Match[str]) -> None:
        table = self._tables[found["table"]]
        condition = text(found["condition"]) if found["condition"] else None
        Index(
            self._prefix + found["name"],
            *(table.c[column] for column in found["columns"].split(", ")),
            unique=found["unique"] is not None,
            postgresql_where=condition,
            sqlite_where=condition,
        )


def _let_metadata_make_the_rest(
    metadata: MetaData, versions: Table, engine: PostgresEngine | SqliteEngine, plain: list[str]
) -> None:
    """What SQLAlchemy's tables cannot say, for those who use create_all() and drop_all(), mostly in tests."""

    def when(moment: str, statements: list[str]) -> None:
        def run(_target: MetaData, connection: Connection, tables: list[Table], **_: Any) -> None:
            if versions in tables:  # not where others alone are created, or ours are there already
                for statement in statements:
                    connection.execute(_text(statement))

        event.listen(metadata, moment, run)

    rest = [step for step in _drops(plain) if not step.startswith("DROP TABLE")]
    when("before_create", list(engine.preamble))
    when("after_create", [engine.rename(step) for step in _rest(plain)])
    when("before_drop", [engine.rename(re.sub("^DROP (VIEW|SEQUENCE)", r"\g<0> IF EXISTS", step)) for step in rest])


def _rest(plain: list[str]) -> Iterator[str]:
    for statement in plain:
        if found := _TABLE.fullmatch(statement):
            if found["settings"]:
                yield f"ALTER TABLE {DEFAULT_PREFIX}{found['name']} SET {found['settings']}"
        elif not _INDEX.fullmatch(statement):
            yield statement
