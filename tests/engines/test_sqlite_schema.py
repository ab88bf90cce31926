"""The schema on SQLite: made when asked, checked before use, the same however often."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

import postroom
from postroom import ArgumentTypeError, ArgumentValueError, SchemaMissing, SchemaOutdated, SchemaTooNew
from postroom import sync as postroom_sync
from postroom._stores.sql.sqlite.engine import SqliteEngine


def objects(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        return {
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%\\_%' ESCAPE '\\'")
        }
    finally:
        connection.close()


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.mark.req("IBX-114", "OBX-102", "IBX-117", "C-52")
def test_migrate_makes_tables_and_indexes(url: str, path: Path) -> None:
    with postroom_sync.Postroom(url) as room:
        assert room.migrate() == [1]
    made = objects(path)
    assert {"postroom_message", "postroom_queue", "postroom_ledger", "postroom_inbox", "postroom_outbox"} <= made
    assert {"postroom_queue_ready", "postroom_message_key", "postroom_ledger_completed"} <= made


@pytest.mark.req("IBX-114", "OBX-102")
async def test_deploy_schema_makes_them_on_first_use(url: str) -> None:
    async with postroom.Postroom(url, deploy_schema=True) as room:
        assert (await room.outbox().enqueue("t", "x")).is_new


@pytest.mark.req("IBX-115", "OBX-103", "IBX-CFG-04", "OBX-CFG-04")
def test_without_deployment_nothing_is_created_and_the_error_says_what_to_do(url: str, path: Path) -> None:
    with postroom_sync.Postroom(url) as room:
        with pytest.raises(SchemaMissing, match="migrate"):
            room.outbox().enqueue("t", "x")
        with pytest.raises(SchemaMissing, match="deploy_schema=True"):
            room.inbox().find()
    assert objects(path) == set()


@pytest.mark.req("RHI-081", "RHI-134", "IBX-116", "OBX-104", "RHI-072")
def test_migrating_again_changes_nothing(url: str, path: Path) -> None:
    with postroom_sync.Postroom(url) as room:
        room.migrate()
        room.outbox().enqueue("t", "x")
        before = objects(path)
        assert room.migrate() == []
        assert room.migrate() == []
        assert objects(path) == before
        assert len(room.outbox().find()) == 1


def _migrate(url: str, barrier: multiprocessing.synchronize.Barrier) -> None:
    with postroom_sync.Postroom(url) as room:
        barrier.wait(30)
        room.migrate()


@pytest.mark.req("IBX-116", "C-52")
def test_processes_may_migrate_at_the_same_time(url: str, path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_migrate, args=(url, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert "postroom_queue" in objects(path)


def test_a_newer_schema_that_breaks_is_refused(url: str, path: Path) -> None:
    with postroom_sync.Postroom(url) as room:
        room.migrate()
    execute(path, "INSERT INTO postroom_schema (version, name) VALUES (98, 'breaking_change'), (99, 'an_addition')")
    with postroom_sync.Postroom(url) as room:
        with pytest.raises(SchemaTooNew, match="the tables are at version 99, this Postroom knows only "):
            room.outbox().enqueue("t", "x")
        with pytest.raises(SchemaTooNew):
            room.migrate()


def test_an_older_schema_is_refused_until_migrated(url: str, path: Path) -> None:
    execute(path, "CREATE TABLE postroom_schema (version INTEGER NOT NULL PRIMARY KEY, name VARCHAR(100) NOT NULL)")
    execute(path, "INSERT INTO postroom_schema (version, name) VALUES (-1, 'before')")
    with postroom_sync.Postroom(url) as room, pytest.raises(SchemaOutdated, match="migrate"):
        room.outbox().enqueue("t", "x")


def test_the_script_makes_the_same_schema(url: str, path: Path, tmp_path: Path) -> None:
    with postroom_sync.Postroom(url) as room:
        room.migrate()
        script = room.schema_script()
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.executescript(script)
    connection.close()
    assert objects(other) == objects(path)
    with postroom_sync.Postroom(f"sqlite:///{other}") as room:
        assert room.outbox().enqueue("t", "x").is_new


@pytest.mark.req("IBX-API-32")
def test_tables_can_have_another_prefix_and_live_side_by_side(url: str, path: Path) -> None:
    with postroom_sync.Postroom(url) as ours, postroom_sync.Postroom(url, prefix="acme_") as theirs:
        ours.migrate()
        theirs.migrate()
        ours.outbox().enqueue("t", "x")
        assert theirs.outbox().find() == []
        assert "acme_queue_ready" in objects(path)


@pytest.mark.parametrize("prefix", ["", "1abc", "a;b", 'a"b', "a b", "ä_", "x" * 41])
def test_a_prefix_that_is_no_identifier_is_refused(url: str, prefix: str) -> None:
    with pytest.raises(ArgumentValueError, match="prefix"):
        postroom_sync.Postroom(url, prefix=prefix)


def test_a_prefix_of_the_wrong_type_is_refused(url: str) -> None:
    with pytest.raises(ArgumentTypeError, match="prefix"):
        postroom_sync.Postroom(url, prefix=None)  # type: ignore[arg-type]


@pytest.mark.req("C-30")
def test_views_speak_the_documents_words(url: str, path: Path) -> None:
    with postroom_sync.Postroom(url) as room:
        room.migrate()
        room.inbox("shop").enqueue("t", "x", source="s", message_id="1")
        room.inbox("shop").mark_processed("2", "s")
        outbox, owner = room.outbox(), postroom.OwnerToken.new()
        outbox.enqueue_many([postroom.NewMessage("t", str(n), message_id=str(n)) for n in range(3)])
        claimed = outbox.claim(owner, batch_size=2)
        outbox.fail(owner, claimed[:1], "no")
    connection = sqlite3.connect(path)
    inbox_rows = connection.execute("SELECT inbox_name, message_id, status FROM postroom_inbox ORDER BY id").fetchall()
    assert inbox_rows == [("shop", "1", "Processing"), ("shop", "2", "Done")]
    outbox_rows = connection.execute(
        "SELECT message_id, status, is_processed, retry_count, locked_until IS NOT NULL "
        "FROM postroom_outbox ORDER BY id"
    ).fetchall()
    assert outbox_rows == [("0", "Failed", 0, 0, 0), ("1", "InProgress", 0, 0, 1), ("2", "Ready", 0, 0, 0)]
    connection.close()


def test_migrations_are_numbered_without_gaps() -> None:
    versions = [migration.version for migration in SqliteEngine().migrations]
    assert versions == list(range(1, len(versions) + 1))
