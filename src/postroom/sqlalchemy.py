"""For users of SQLAlchemy and Alembic: our tables in your MetaData, and our migrations as steps of yours.

The tables are defined once, in the migrations of each engine. This module reads their SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from postroom._connect import DEFAULT_DIALECT, make_engine
from postroom._kernel.prefix import DEFAULT_PREFIX, check_prefix
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.schema import SchemaPrograms
from postroom.errors import ArgumentTypeError, ArgumentValueError, ExtraMissing

try:
    from sqlalchemy import (
        BLANK_SCHEMA,
        BigInteger,
        Boolean,
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

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext

__all__ = ["drop", "migrate", "tables"]


class Operations(Protocol):
    """The methods of Alembic's `op` that this module uses."""

    def execute(self, sqltext: TextClause, /) -> object: ...
    def get_context(self) -> MigrationContext: ...


def tables(
    metadata: MetaData,
    *,
    dialect: str = DEFAULT_DIALECT,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> dict[str, Table]:
    """Adds the tables of Postroom to your MetaData, in their newest version, so that Alembic's autogenerate keeps them.

    `create_all()` and `drop_all()` work too: they make and drop the views, and record the version.

    Args:
        metadata: your MetaData.
        dialect: `"postgresql"` (default) or `"sqlite"`.
        prefix: as the room has it. Default: `"postroom_"`.
        schema: as the room has it. Default: None.

    Returns:
        The tables by name, without prefix. A second call returns the same tables.
    """
    if not isinstance(metadata, MetaData):
        raise ArgumentTypeError(f"metadata must be a sqlalchemy.MetaData, not {type(metadata).__name__}")
    engine = _engine(dialect, prefix, schema)
    plain = _plain(dialect)
    where = f"{schema}." if schema else ""
    keys = {made[2]: f"{where}{prefix}{made[2]}" for made in map(_CREATION.match, plain) if made and made[1] == "TABLE"}
    if metadata.tables.keys() >= set(keys.values()):  # Alembic runs its env.py once for each command
        return {name: metadata.tables[key] for name, key in keys.items()}
    made = _Reader(metadata, dialect, prefix, schema).read(plain)
    _let_metadata_make_the_rest(metadata, made["schema"], engine, plain)
    return made


def migrate(
    op: Operations, *, to: int, since: int = 0, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> None:
    """Migrates the tables of Postroom in a revision of Alembic, in its transaction.

    Every later Postroom runs the same statements for these versions, and `alembic upgrade --sql` prints them.

    Args:
        op: Alembic's `op`.
        to: the version to reach.
        since: the version that the tables have. Default: 0, none.
        prefix: as the room has it. Default: `"postroom_"`.
        schema: as the room has it. Default: None.

    Raises:
        ArgumentValueError: this Postroom does not know these versions.
    """
    known = SchemaPrograms(_engine(op.get_context().dialect.name, prefix, schema))
    if not 0 <= since < to <= known.newest:
        raise ArgumentValueError(
            f"there is no way from version {since} to {to}: this Postroom knows 1 to {known.newest}, and only goes up"
        )
    for statement in known.steps(since, to):
        op.execute(_text(statement))


def drop(op: Operations, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
    """Drops the tables of Postroom in a revision of Alembic, with all messages in them.

    Args:
        op: Alembic's `op`.
        prefix: as the room has it. Default: `"postroom_"`.
        schema: as the room has it. Default: None.
    """
    dialect = op.get_context().dialect.name
    engine = _engine(dialect, prefix, schema)
    for statement in _drops(_plain(dialect)):
        op.execute(_text(engine.rename(statement)))


def _engine(dialect: str, prefix: str, schema: str | None) -> Engine:
    return make_engine(dialect, check_prefix(prefix), schema)


def _text(statement: str) -> TextClause:
    return text(statement.replace(":", r"\:"))  # else a colon would begin a parameter


# -- reading our own SQL -----------------------------------------------------------------------------------------------


class _Untyped(UserDefinedType[object]):
    """A column without a type, which takes values of any type, as they are."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return ""


_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": BigInteger(),
    "boolean": Boolean(),
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
    rf"CREATE TABLE {DEFAULT_PREFIX}(?P<name>\w+) \((?P<columns>.*?)(?:, PRIMARY KEY \((?P<keys>[\w, ]+)\) ?)?\)"
    r"(?: WITH (?P<settings>\(.*\))| (?P<rowless>WITHOUT ROWID))?",
    re.DOTALL,
)
_COLUMN = re.compile(
    rf"(?P<name>\w+) ?(?P<type>{'|'.join(map(re.escape, filter(None, _TYPES)))}|)"
    r'(?: COLLATE "(?P<collation>\w+)")?(?P<required> NOT NULL)?(?P<key> PRIMARY KEY)?'
    rf"(?: REFERENCES {DEFAULT_PREFIX}(?P<target>\w+) \(id\)(?P<cascade> ON DELETE CASCADE)?)?"
    r"(?: DEFAULT (?P<default>\d+|true|false))?",
    re.IGNORECASE,
)
_INDEX = re.compile(
    rf"CREATE (?P<unique>UNIQUE )?INDEX {DEFAULT_PREFIX}(?P<name>\w+) ON {DEFAULT_PREFIX}(?P<table>\w+) "
    r"\((?P<columns>[\w, ]+)\)(?: WHERE (?P<condition>.+))?"
)


def _plain(dialect: str) -> list[str]:
    """Returns the statements that make everything, with default names, without comments and line breaks."""
    steps = SchemaPrograms(make_engine(dialect, DEFAULT_PREFIX, None)).steps()
    return [" ".join(re.sub(r"--.*", "", step).split()).rstrip(";") for step in steps]


def _drops(plain: list[str]) -> list[str]:
    """Returns the statements that drop everything, in reverse order."""
    made = dict.fromkeys(found[0] for found in map(_CREATION.match, plain) if found)
    return [creation.replace("CREATE", "DROP", 1) for creation in reversed(made)]


class _Reader:
    """Makes objects of SQLAlchemy from statements."""

    def __init__(self, metadata: MetaData, dialect: str, prefix: str, schema: str | None) -> None:
        self._metadata = metadata
        self._dialect = dialect
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
        keys = (found["keys"] or "").split(", ")
        columns = [self._column(definition, keys) for definition in found["columns"].split(",")]
        options: dict[str, Any] = {f"{self._dialect}_with_rowid": False} if found["rowless"] else {}
        name = self._prefix + found["name"]
        self._tables[found["name"]] = Table(name, self._metadata, *columns, schema=self._schema, **options)

    def _column(self, definition: str, keys: list[str]) -> Column[Any]:
        """`keys`: the columns of a primary key that has several."""
        found = _COLUMN.fullmatch(definition.strip())
        if found is None:
            raise NotImplementedError(definition)
        type_ = _TYPES[found["type"].lower()]
        return Column(
            found["name"],
            Text(collation=found["collation"]) if found["collation"] else type_,
            *([self._reference(found)] if found["target"] else []),
            primary_key=found["key"] is not None or found["name"] in keys,
            nullable=found["required"] is None,
            autoincrement=False,
            server_default=None if found["default"] is None else text(found["default"]),
        )

    def _reference(self, found: re.Match[str]) -> ForeignKey:
        return ForeignKey(self._tables[found["target"]].c.id, ondelete="CASCADE" if found["cascade"] else None)

    def _index(self, found: re.Match[str]) -> None:
        table = self._tables[found["table"]]
        options: dict[str, Any] = {}
        if found["condition"]:
            options[f"{self._dialect}_where"] = text(found["condition"])
        Index(
            self._prefix + found["name"],
            *(table.c[column] for column in found["columns"].split(", ")),
            unique=found["unique"] is not None,
            **options,
        )


def _let_metadata_make_the_rest(metadata: MetaData, versions: Table, engine: Engine, plain: list[str]) -> None:
    """Makes and drops what SQLAlchemy's tables cannot express, for users of create_all() and drop_all()."""

    def when(moment: str, statements: list[str]) -> None:
        def run(_target: MetaData, connection: Connection, tables: list[Table], **_: object) -> None:
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
