"""Migrations only add, so that processes of the version before work, and can be started, after a migration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from postroom import OwnerToken
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.schema import BREAKING
from postroom._stores.sql.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import Migration
from postroom._stores.wrapper import innermost
from postroom.sync import Postroom
from tests.next_version import add_migration
from tests.postgres import create_database

ADDITIONS = [
    r"CREATE TABLE .*",
    r"CREATE INDEX .*",
    r"CREATE SEQUENCE .*",
    r"CREATE (OR REPLACE )?VIEW .*",  # the package itself reads no view
    r"DROP VIEW .*",
    r"DROP INDEX .*",
    r"ALTER TABLE \S+ ADD COLUMN (?!.*\bNOT NULL\b).*",
    r"ALTER TABLE \S+ ADD COLUMN .*\bDEFAULT\b.*",
]


def only_adds(statement: str) -> bool:
    text = " ".join(re.sub(r"--[^\n]*", "", statement).split())
    return any(re.fullmatch(addition, text, re.IGNORECASE) for addition in ADDITIONS)


ENGINES: list[Engine] = [SqliteEngine(), PostgresEngine()]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_a_migration_only_adds_or_is_named_as_breaking(engine: Engine) -> None:
    for migration in engine.migrations[1:]:
        if not migration.name.startswith(BREAKING):
            assert [text for text in engine.split(migration.text) if not only_adds(text)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE postroom_queue",
        "ALTER TABLE postroom_queue DROP COLUMN fence",
        "ALTER TABLE postroom_queue RENAME COLUMN fence TO claim",
        "ALTER TABLE postroom_queue ADD COLUMN later INTEGER NOT NULL",
        "CREATE UNIQUE INDEX i ON postroom_queue (fence)",
        "UPDATE postroom_queue SET state = 7",
    ],
)
def test_what_breaks_the_version_before_is_known(statement: str) -> None:
    assert not only_adds(statement)


ADDED = """\
-- What the next version of this package might bring.
ALTER TABLE postroom_queue ADD COLUMN later INTEGER;
CREATE TABLE postroom_later (id INTEGER NOT NULL PRIMARY KEY);
"""


def upgrade(room: Any) -> None:
    schema = innermost(room.store)._schema
    change = Migration(schema.newest + 1, "later", ADDED)
    assert all(only_adds(text) for text in schema.engine.split(change.text))
    add_migration(room, change)


@pytest.mark.parametrize("store", ["sqlite3", "psycopg"])
def test_the_version_before_works_and_starts_after_a_migration(store: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'room.db'}" if store == "sqlite3" else create_database()
    with Postroom(url, deploy_schema=True) as running, Postroom(url) as next_version:
        work(running, "before")
        upgrade(next_version)
        assert len(next_version.migrate()) == 1
        work(running, "running")
        with Postroom(url, deploy_schema=True) as restarted:
            work(restarted, "restarted")
            assert restarted.migrate() == []
        work(next_version, "next")


def work(room: Postroom, message_id: str) -> None:
    inbox, owner = room.inbox(), OwnerToken.new()
    assert inbox.enqueue("t", {}, source="s", message_id=message_id).is_new
    [message] = inbox.claim(owner)
    assert inbox.ack(owner, [message]) == [True]
    assert inbox.is_processed(message_id, "s")
