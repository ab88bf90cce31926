"""What runs all the time must find its rows by index.

A plan is made once, without a look at the parameters, and kept: it may have been made while the tables were empty. So
it must be right when it was made then, and on a million rows with fresh statistics and without any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from postroom._connect.postgres import SERVER_SETTINGS
from postroom._stores.sql.engines.postgres.engine import PostgresEngine
from postroom.sync import Postroom
from tests.postgres import create_database

ROWS = 1_000_000

# The statement, and the indexes by which it must find its rows.
HOT = {
    "turn": ["postroom_queue_ready", "postroom_queue_pkey", "postroom_message_pkey"],
    "hints": ["postroom_queue_ready"],
    "lines": ["postroom_queue_line", "postroom_queue_held"],
    "take": ["postroom_queue_pkey", "postroom_queue_held", "postroom_message_pkey"],
    "sleep": ["postroom_queue_pkey"],
    "promote": ["postroom_queue_line"],
    "end_batch": ["postroom_queue_held"],
    "complete": ["postroom_queue_pkey"],
    "hold": ["postroom_queue_pkey"],
    "renew": ["postroom_queue_pkey"],
    "late": ["postroom_queue_ready", "postroom_queue_held"],
    "expired": ["postroom_queue_expires"],
    "known": ["postroom_message_key", "postroom_queue_pkey"],
    "rivals": ["postroom_queue_collapse"],
    "find_dead": ["postroom_queue_dead"],
    "purge_done": ["postroom_ledger_completed", "postroom_message_pkey"],
    "purge_dead": ["postroom_queue_dead"],
    "purge_seen": ["postroom_queue_seen"],
    "count_done": ["postroom_ledger_completed"],
    "known_in_passing": ["postroom_message_key", "postroom_queue_pkey", "postroom_ledger_pkey"],
    "lock_keys": ["postroom_message_key", "postroom_queue_pkey", "postroom_message_pkey"],
    "lock_doomed": ["postroom_queue_pkey"],
    "held_by_name": ["postroom_message_key", "postroom_queue_pkey"],
    "wait": ["postroom_queue_pkey"],
    "free": ["postroom_queue_pkey"],
    "bury": ["postroom_queue_pkey"],
    "revive": ["postroom_queue_pkey"],
    "finish": ["postroom_queue_pkey"],
    "dequeue": ["postroom_queue_pkey"],
    "forget": ["postroom_message_pkey"],
    "find_listed": ["postroom_message_pkey", "postroom_queue_pkey", "postroom_ledger_pkey"],
    "find_named": ["postroom_message_key", "postroom_queue_pkey", "postroom_ledger_pkey"],
}

_ARRAYS = {"ids", "fences", "groups", "lines", "id", "ahead", "seen_ids", "source", "message_id"}


@pytest.fixture(scope="module", params=["empty", "without statistics", "analyzed"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A million messages, half of them in a thousand groups, a tenth done; or none, while plans are made."""
    url = create_database()
    with Postroom(url) as room:
        room.migrate()
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SERVER_SETTINGS.items())
    with psycopg.connect(url, autocommit=True, options=options) as connection:
        connection.execute("ALTER TABLE postroom_message SET (autovacuum_enabled = false)")
        connection.execute("ALTER TABLE postroom_queue SET (autovacuum_enabled = false)")
        connection.execute("ALTER TABLE postroom_ledger SET (autovacuum_enabled = false)")
        if request.param == "empty":
            for name in HOT:
                _prepare(connection, name)
        connection.execute(
            "INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen) "
            "SELECT i, 'inbox:inbox', 's', 'm' || i, 't', '{}', 'json', now(), now() "
            f"FROM generate_series(1, {ROWS}) i"
        )
        connection.execute(
            "INSERT INTO postroom_queue (id, box, state, available_at, group_id) "
            "SELECT id, box, 1, first_seen, CASE id % 2 WHEN 0 THEN 'g' || (id % 1000) END "
            f"FROM postroom_message WHERE id <= {ROWS * 9 // 10}"
        )
        connection.execute(
            "INSERT INTO postroom_ledger (id, box, completed_at, ending, attempt, deliveries) "
            f"SELECT id, box, first_seen, 'handled', 0, 1 FROM postroom_message WHERE id > {ROWS * 9 // 10}"
        )
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        if request.param != "empty":
            for name in HOT:
                _prepare(connection, name)
        yield connection


@pytest.mark.req("IBX-122", "OBX-113", "IBX-125", "IBX-117")
def test_finds_rows_by_index(connection: psycopg.Connection[Any]) -> None:
    """One test for all: the table takes longer than they do."""
    found = {name: _plan(connection, name) for name in HOT}
    missing = {name: plan for name, plan in found.items() if any(index not in plan for index in HOT[name])}
    assert not missing, "\n\n".join(f"{name}\n{plan}" for name, plan in missing.items())
    whole = re.compile(r"Seq Scan on postroom_(queue|message|ledger)|Merge Join")
    scans = {name: plan for name, plan in found.items() if whole.search(plan)}
    assert not scans, "\n\n".join(f"{name}\n{plan}" for name, plan in scans.items())
    assert "Sort" not in found["purge_done"], "it would lock all that is old, and then take a few"


def test_a_claim_reads_only_what_it_takes_and_tells_no_index(connection: psycopg.Connection[Any]) -> None:
    """Of nine hundred thousand that wait, fifty are touched. Their new versions stand beside the old ones."""
    connection.execute("BEGIN")
    plan = _plan(connection, "turn", analyze=True)
    updates = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'postroom_queue'"
    written = connection.execute(updates).fetchone()
    connection.execute("ROLLBACK")
    rows = [int(count) for count in re.findall(r"Scan using postroom_\w+ on postroom_\w+.*?rows=(\d+)", plan)]
    assert rows
    assert max(rows) <= 50, plan
    assert written == (50, 50)


def _plan(connection: psycopg.Connection[Any], name: str, *, analyze: bool = False) -> str:
    options = "ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF" if analyze else "COSTS OFF"
    return _explain(connection, name, options)


def _prepare(connection: psycopg.Connection[Any], name: str) -> None:
    """And plan, once and for all."""
    text = PostgresEngine().statements[name]
    connection.execute(f"PREPARE {name} AS {text.numbered}".encode())
    _explain(connection, name, "COSTS OFF")


def _explain(connection: psycopg.Connection[Any], name: str, options: str) -> str:
    text = PostgresEngine().statements[name]
    values = [sql.Literal(_value(name, parameter, text.named)) for parameter in text.parameters]
    query = sql.SQL("EXPLAIN ({}) EXECUTE {} ({})").format(
        sql.SQL(options),
        sql.Identifier(name),
        sql.SQL(", ").join(values),
    )
    return "\n".join(row[0] for row in connection.execute(query).fetchall())


def _value(statement: str, parameter: str, text: str) -> Any:
    """A value of the right type: the text itself says which where it is not plain."""
    cast = re.search(rf":{parameter}::(\w+(?:\[\])?)", text)
    kind = cast[1] if cast else ""
    if kind in {"bigint[]", "integer[]"}:
        return [1, 2, 3]
    if kind == "text[]":
        return None if parameter == "topics" else ["g1", "g2", "g3"]
    known: dict[str, Any] = {
        "box": "inbox:inbox",
        "limit": 50,
        "owner": "00000000-0000-0000-0000-000000000001",
        "lease": "30 seconds",
        "until": "2100-01-01",
        "cutoff": "2100-01-01",
        "message_id": "m1",
        "source": "s",
        "collapse_key": "k",
        "before": 10,
        "id": 1,
        "after": 0,
        "sliding": 0,
        "blocking": 0,
    }
    return known.get(parameter)
