"""Query plans on a large table: statements find their rows by index, whatever the backlog."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom._stores.sql.sqlite.engine import SqliteEngine

HOT = {
    "find_claimable": ["postroom_queue_ready"],
    "find_claimable_on_topics": ["postroom_queue_ready"],
    "find_expired_leases": ["postroom_queue_ready"],
    "find_expired": ["postroom_queue_expires"],
    "find_key": ["postroom_message_key"],
    "find_claim_by_name": ["postroom_message_key"],
    "find_by_message_id": ["postroom_message_key"],
    "find_nearby": ["INTEGER PRIMARY KEY"],
    "find_dead": ["postroom_queue_dead"],
    "find_waiting": ["postroom_queue_ready", "postroom_queue_line"],
    "find_candidates": ["postroom_queue_ready"],
    "attend": ["postroom_queue_ready"],
    "read_lines": ["postroom_queue_line", "postroom_queue_held"],
    "promote": ["postroom_queue_line"],
    "end_batch": ["postroom_queue_held"],
    "find_nonempty_lines": ["postroom_queue_line"],
    "find_superseded": ["postroom_queue_collapse"],
    "purge_done": ["postroom_ledger_completed"],
    "purge_dead": ["postroom_queue_dead"],
    "purge_seen": ["postroom_queue_seen"],
    "claim": ["INTEGER PRIMARY KEY"],
    "complete": ["INTEGER PRIMARY KEY"],
    "dequeue": ["INTEGER PRIMARY KEY"],
    "find_valid_claims": ["INTEGER PRIMARY KEY"],
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
    """The plan must be right with and without statistics."""
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
        "read_before": "[]",
        "boxes": '["inbox:inbox"]',
    }
    plan = [row[3] for row in planned.execute(f"EXPLAIN QUERY PLAN {text.named}", parameters)]
    steps = "\n".join(plan)
    for index in HOT[name]:
        assert index in steps, steps
    tables = ("postroom_queue", "postroom_message", "postroom_ledger", " q", " m", " l", " w", " e")
    if name == "find_nearby":
        assert "USE TEMP B-TREE FOR ORDER BY" not in steps, "a sort would read all of the box for one page"
    scans = [
        step for step in plan if step.startswith("SCAN") and step.removeprefix("SCAN").split(" USING")[0] in tables
    ]
    assert scans == [], steps
