"""Query plans on a large table: what runs often must find its rows by index, whatever the backlog."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom._stores.sql.engines.sqlite.engine import SqliteEngine

HOT = {
    "candidates": ["postroom_queue_ready"],
    "candidates_on_topics": ["postroom_queue_ready"],
    "late": ["postroom_queue_ready"],
    "expired": ["postroom_queue_expires"],
    "known": ["postroom_message_key"],
    "held_by_name": ["postroom_message_key"],
    "find_named": ["postroom_message_key"],
    "find": ["INTEGER PRIMARY KEY"],
    "find_dead": ["postroom_queue_dead"],
    "find_waiting": ["postroom_queue_ready", "postroom_queue_line"],
    "hints": ["postroom_queue_ready"],
    "lines": ["postroom_queue_line", "postroom_queue_held"],
    "promote": ["postroom_queue_line"],
    "end_batch": ["postroom_queue_held"],
    "first_in_lines": ["postroom_queue_line"],
    "rivals": ["postroom_queue_collapse"],
    "purge_done": ["postroom_ledger_completed"],
    "purge_dead": ["postroom_queue_dead"],
    "purge_seen": ["postroom_queue_seen"],
    "take": ["INTEGER PRIMARY KEY"],
    "complete": ["INTEGER PRIMARY KEY"],
    "dequeue": ["INTEGER PRIMARY KEY"],
    "hold": ["INTEGER PRIMARY KEY"],
    "count_done": ["postroom_ledger_completed"],
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "large.db"
    engine = SqliteEngine()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    for migration in engine.migrations:
        connection.executescript(migration.text)
    connection.executescript(
        """
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
        INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
        SELECT i, 'inbox:inbox', 's', 'm' || i, 't', '{}', 'json', i, i FROM n;
        INSERT INTO postroom_queue (id, box, state, available_at, group_id)
        SELECT id, box, 1, id, CASE id % 2 WHEN 0 THEN 'g' || (id % 1000) END FROM postroom_message WHERE id <= 90000;
        INSERT INTO postroom_ledger (id, box, completed_at, ending, attempt, deliveries)
        SELECT id, box, id, 'handled', 0, 1 FROM postroom_message WHERE id > 90000;
        """
    )
    yield connection
    connection.close()


@pytest.fixture(scope="module", params=["fresh", "analyzed"])
def planned(request: pytest.FixtureRequest, connection: sqlite3.Connection) -> sqlite3.Connection:
    """The plan must hold with SQLite's guesses and with its statistics."""
    if request.param == "analyzed":
        connection.execute("ANALYZE")
    return connection


@pytest.mark.req("IBX-122", "OBX-113", "IBX-125", "IBX-117")
@pytest.mark.parametrize("name", sorted(HOT))
def test_finds_rows_by_index(planned: sqlite3.Connection, name: str) -> None:
    text = SqliteEngine().statements[name]
    parameters = dict.fromkeys(text.columns, 1) | {
        "ids": "[1]",
        "claims": '{"1": 1}',
        "topics": '["t"]',
        "groups": '["g"]',
        "seen": "[]",
    }
    plan = [row[3] for row in planned.execute(f"EXPLAIN QUERY PLAN {text.named}", parameters)]
    steps = "\n".join(plan)
    for index in HOT[name]:
        assert index in steps, steps
    tables = ("postroom_queue", "postroom_message", "postroom_ledger", " q", " m", " l", " w", " e")
    if name == "find":
        assert "USE TEMP B-TREE FOR ORDER BY" not in steps, "it would read all of the box, and then show a page of it"
    scans = [
        step for step in plan if step.startswith("SCAN") and step.removeprefix("SCAN").split(" USING")[0] in tables
    ]
    assert scans == [], steps
