"""Our tables in a user's MetaData: Alembic leaves them alone, and they are what the migrations make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, NullPool, Table, select
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import ArgumentTypeError, ArgumentValueError, OwnerToken
from postroom.sqlalchemy import tables
from tests.orm.databases import KINDS, Database, Kind
from tests.postgres import with_driver

PLAIN = KINDS[0]


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def ours(kind: Kind, metadata: MetaData | None = None) -> MetaData:
    metadata = MetaData() if metadata is None else metadata
    tables(metadata, dialect=kind.dialect, **kind.names)
    return metadata


def differences(engine: Engine, metadata: MetaData, schema: str | None = None) -> list[Any]:
    """What `alembic revision --autogenerate` would write, with every comparison that it has."""
    options = {"compare_type": True, "compare_server_default": True, "include_schemas": schema is not None}
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


@pytest.mark.req("CEB-015", "C-52")
def test_autogenerate_neither_drops_nor_changes_anything(kind: Kind, tmp_path: Path) -> None:
    database = kind.create(tmp_path).migrate()
    assert differences(database.engine, ours(kind), kind.schema) == []
    dropped = {found[1].name for found in differences(database.engine, MetaData(), kind.schema)}
    assert {f"{kind.prefix}message", f"{kind.prefix}queue", f"{kind.prefix}ledger", f"{kind.prefix}schema"} <= dropped


CONVENTION = {"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s", "fk": "fk_%(table_name)s_%(column_0_name)s"}


def test_only_the_users_own_changes_are_found(kind: Kind, tmp_path: Path) -> None:
    database = kind.create(tmp_path).migrate()
    metadata = ours(kind, MetaData(schema=kind.schema, naming_convention=CONVENTION))
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    [(change, table)] = differences(database.engine, metadata, kind.schema)
    assert (change, table.name) == ("add_table", "orders")


CHANGES = [
    'ALTER TABLE postroom_message ALTER COLUMN "group_id" SET NOT NULL',
    "ALTER TABLE postroom_message ALTER COLUMN revision SET DEFAULT 1",
    "ALTER TABLE postroom_message ALTER COLUMN retired DROP DEFAULT",
    "ALTER TABLE postroom_message ALTER COLUMN retired TYPE integer",
    "ALTER TABLE postroom_ledger ADD COLUMN note text",
    "ALTER TABLE postroom_queue DROP COLUMN stale",
    "DROP INDEX postroom_queue_ready",
    "CREATE INDEX postroom_queue_more ON postroom_queue (owner)",
]


@pytest.mark.parametrize("change", CHANGES)
def test_autogenerate_would_have_found_a_difference(change: str, tmp_path: Path) -> None:
    database = PLAIN.create(tmp_path).migrate()
    database.execute(change)
    assert len(differences(database.engine, ours(PLAIN))) == 1


@pytest.mark.req("CEB-015")
def test_create_all_makes_exactly_what_migrate_makes(kind: Kind, tmp_path: Path) -> None:
    """So nothing is in the migrations that the tables do not know, and the reverse."""
    migrated, created = kind.create(tmp_path).migrate(), kind.create(tmp_path)
    metadata = ours(kind)
    metadata.create_all(created.engine)
    metadata.create_all(created.engine)
    assert created.contents() == migrated.contents()
    with created.room() as room:
        assert room.migrate() == []


def test_drop_all_leaves_nothing(kind: Kind, tmp_path: Path) -> None:
    database = kind.create(tmp_path)
    before = database.contents()
    database.migrate()
    assert database.contents() != before
    ours(kind).drop_all(database.engine)
    assert database.contents() == before


async def test_create_all_works_in_async_code(tmp_path: Path) -> None:
    database = PLAIN.create(tmp_path)
    engine = create_async_engine(with_driver(database.url, "asyncpg"), poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(ours(PLAIN).create_all)
    assert database.contents() == PLAIN.create(tmp_path).migrate().contents()


def test_a_users_own_tables_may_be_created_alone(tmp_path: Path) -> None:
    database, metadata = PLAIN.create(tmp_path), ours(PLAIN)
    orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
    metadata.create_all(database.engine, tables=[orders])
    assert database.migrate().execute("SELECT version FROM postroom_schema") == [(1,)]


def test_the_tables_can_be_read(kind: Kind, tmp_path: Path) -> None:
    database, found = kind.create(tmp_path).migrate(), tables(MetaData(), dialect=kind.dialect, **kind.names)
    worker = OwnerToken.new()
    with database.room() as room:
        room.outbox().enqueue("mail", "text", message_id="1")
        room.outbox().claim(worker)
    message, queue = found["message"], found["queue"]
    joined = select(message.c.topic, message.c.payload, queue.c.owner).join(queue, queue.c.id == message.c.id)
    with database.engine.connect() as connection:
        [(topic, payload, owner)] = connection.execute(joined)
    assert (topic, payload if isinstance(payload, str) else payload.decode()) == ("mail", "text")
    assert str(owner) == str(worker)


def test_a_second_call_returns_the_same_tables(kind: Kind) -> None:
    """Alembic runs env.py for every command; the MetaData may be the same one."""
    metadata = MetaData()
    first = tables(metadata, dialect=kind.dialect, **kind.names)
    assert tables(metadata, dialect=kind.dialect, **kind.names) == first
    assert len(metadata.tables) == len(first)


def test_two_sets_of_tables_live_side_by_side(tmp_path: Path) -> None:
    metadata = MetaData()
    tables(metadata)
    tables(metadata, prefix="billing_")
    database = PLAIN.create(tmp_path).migrate()
    Database(Kind("postgresql", {"prefix": "billing_"}), database.url).migrate()
    assert differences(database.engine, metadata) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dialect": "oracle"}, "there are no tables for 'oracle'; this version has postgresql and sqlite"),
        ({"dialect": "sqlite", "schema": "mail"}, "sqlite knows no schema"),
        ({"schema": ""}, "schema '' cannot name a schema"),
        ({"prefix": "a b"}, "prefix 'a b' cannot begin the name of a table"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    metadata = MetaData()
    with pytest.raises(ArgumentValueError, match=said):
        tables(metadata, **options)
    assert not metadata.tables


def test_an_engine_is_not_metadata(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"metadata must be a sqlalchemy.MetaData, not Engine"):
        tables(PLAIN.create(tmp_path).engine)  # type: ignore[arg-type]


def test_without_sqlalchemy_the_extra_is_named() -> None:
    program = "import sys; sys.modules['sqlalchemy'] = None\nimport postroom.sqlalchemy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    said = "postroom.errors.ExtraMissing: postroom.sqlalchemy needs SQLAlchemy: pip install 'postroom[sqlalchemy]'"
    assert done.stderr.splitlines()[-1] == said
