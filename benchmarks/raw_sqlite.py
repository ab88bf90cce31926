"""The limit: the same rows in the same tables, written as tightly as sqlite3 allows.

It makes the tables with Postroom's own migration, opens the file with the same pragmas, commits as often, keeps the
dedup constraint and checks owner and fence at the ack. It knows one box and one owner, reads no expired leases, checks
no arguments, decodes nothing and builds no objects. Each run begins with a check that both leave the same rows.

Each statement is the fastest of those that were tried: lists as JSON text beat executemany, except for the insert of
messages, where the values have to be bound anyway. Columns that stay NULL are left out, since sqlite3 takes longer to
bind a None than a number.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.workload import BOX, SOURCE, TOPIC, Item

LEASE = 30_000_000
BOX_KEY = f"inbox:{BOX}"
TABLES = ("postroom_message", "postroom_queue", "postroom_ledger")

Row = tuple[Any, ...]

_RESERVE = "UPDATE postroom_sequence SET value = value + ? WHERE name = 'message' RETURNING value"

_INSERT = f"""
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
VALUES (?, '{BOX_KEY}', '{SOURCE}', ?, '{TOPIC}', ?, 'json', ?, ?)
ON CONFLICT (box, message_id, source, retired) DO NOTHING
"""

_ENTER = """
INSERT INTO postroom_queue (id, box, state, available_at)
SELECT id, box, 1, first_seen FROM postroom_message WHERE id BETWEEN ? AND ?
"""

# Whole messages: what a claim has to worker out.
_CANDIDATES = f"""
SELECT q.id, q.fence, q.attempt, q.deliveries, q.last_error,
       m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id, m.collapse_key,
       m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision
  FROM postroom_queue q
  JOIN postroom_message m ON m.id = q.id
 WHERE q.box = '{BOX_KEY}' AND q.state = 1 AND q.available_at <= ?
 ORDER BY q.available_at, q.id
 LIMIT ?
"""

_TAKE = """
UPDATE postroom_queue
   SET state = 2, owner = ?, fence = fence + 1, deliveries = deliveries + 1, available_at = ?, stale = 0
 WHERE id IN (SELECT value FROM json_each(?))
"""

_COMPLETE = f"""
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT q.id, q.box, ?, q.owner, 'handled', q.attempt, q.deliveries, q.last_error
  FROM json_each(?) c
  CROSS JOIN postroom_queue q ON q.id = c.key AND q.fence = c.value
 WHERE q.box = '{BOX_KEY}' AND q.owner = ? AND q.state = 2
"""

_DEQUEUE = "DELETE FROM postroom_queue WHERE id IN (SELECT value FROM json_each(?))"


class RawLoop:
    """Enqueue, claim and ack, each in a separate transaction."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._execute = self._connection.execute
        self._owner = str(uuid4())

    def enqueue(self, items: list[Item]) -> None:
        now = _now()
        self._execute("BEGIN IMMEDIATE")
        [(last,)] = self._execute(_RESERVE, (len(items),)).fetchall()
        first = last - len(items) + 1
        rows = [(id_, item.message_id, item.text, now, now) for id_, item in enumerate(items, first)]
        inserted = self._connection.executemany(_INSERT, rows).rowcount
        self._execute(_ENTER, (first, last))
        self._execute("COMMIT")
        _expect(inserted, len(items))

    def claim(self, limit: int) -> list[Row]:
        now = _now()
        self._execute("BEGIN IMMEDIATE")
        rows = self._execute(_CANDIDATES, (now, limit)).fetchall()
        self._execute(_TAKE, (self._owner, now + LEASE, json.dumps([row[0] for row in rows])))
        self._execute("COMMIT")
        return rows

    def ack(self, rows: list[Row]) -> None:
        now = _now()
        self._execute("BEGIN IMMEDIATE")
        claims = json.dumps({row[0]: row[1] + 1 for row in rows})
        completed = self._execute(_COMPLETE, (now, claims, self._owner)).rowcount
        self._execute(_DEQUEUE, (json.dumps([row[0] for row in rows]),))
        self._execute("COMMIT")
        _expect(completed, len(rows))

    def close(self) -> None:
        self._connection.close()


def contents(path: Path) -> dict[str, list[Row]]:
    """The tables without times and owners, to compare what two loops have left."""
    varying = {"first_seen", "last_seen", "available_at", "owner", "completed_at", "completed_by"}
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return {
            table: [
                tuple((name, row[name] is None if name in varying else row[name]) for name in row.keys())  # noqa: SIM118
                for row in connection.execute(f"SELECT * FROM {table} ORDER BY id")
            ]
            for table in TABLES
        }
    finally:
        connection.close()


def _now() -> int:
    return time.time_ns() // 1000


def _expect(changed: int, wanted: int) -> None:
    if changed != wanted:
        raise AssertionError(f"the raw loop changed {changed} rows instead of {wanted}")
