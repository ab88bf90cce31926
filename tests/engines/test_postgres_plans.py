"""Statements find their rows by index.

A plan is made once, without regard to parameters, and kept. So it must be right if it was made while the tables were
empty, and on a million rows with fresh statistics and without any.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.postgres.settings import SERVER_SETTINGS
from postroom.sync import Postroom
from tests.postgres import create_database

ROWS, FEW = 1_000_000, 20_000

# Statements, and the indexes by which they must find their rows.
HOT = {
    "exchange": ["postroom_queue_ready", "postroom_queue_pkey", "postroom_message_pkey"],
    "find_candidates": ["postroom_queue_ready"],
    "attend": ["postroom_queue_ready", "postroom_nudge_box", "postroom_attendant_pkey"],
    "read_lines": ["postroom_queue_line", "postroom_queue_held"],
    "claim_fronts": ["postroom_queue_pkey", "postroom_queue_held", "postroom_message_pkey"],
    "sleep_behind_first": ["postroom_queue_pkey"],
    "promote": ["postroom_queue_line", "postroom_queue_pkey"],
    "end_batch": ["postroom_queue_held"],
    "complete": ["postroom_queue_pkey"],
    "find_valid_claims": ["postroom_queue_pkey"],
    "renew": ["postroom_queue_pkey"],
    "renew_and_wait": ["postroom_queue_pkey"],
    "find_expired_leases": ["postroom_queue_ready", "postroom_queue_pkey"],
    "find_expired_leases_in_groups": ["postroom_queue_held", "postroom_queue_pkey"],
    "find_expired": ["postroom_queue_expires"],
    "lock_key": ["postroom_message_key", "postroom_queue_pkey"],
    "find_superseded": ["postroom_queue_collapse"],
    "reschedule": ["postroom_queue_pkey"],
    "find_nearby": ["postroom_message_pkey", "postroom_queue_pkey", "postroom_ledger_pkey"],
    "find_dead": ["postroom_queue_dead"],
    "purge_done": ["postroom_ledger_completed", "postroom_message_pkey"],
    "purge_dead": ["postroom_queue_dead"],
    "purge_seen": ["postroom_queue_seen"],
    "count_done": ["postroom_ledger_completed"],
    "lock_message_of_key": ["postroom_message_key", "postroom_queue_pkey", "postroom_ledger_pkey"],
    "lock_keys": ["postroom_message_key", "postroom_queue_pkey", "postroom_message_pkey"],
    "lock_undeliverable": ["postroom_queue_pkey", "postroom_message_pkey"],
    "lock_collapse_keys": ["postroom_queue_collapse", "postroom_queue_pkey"],
    "find_claim_by_name": ["postroom_message_key", "postroom_queue_pkey"],
    "give_back": ["postroom_queue_pkey"],
    "end_leases": ["postroom_queue_pkey"],
    "make_dead": ["postroom_queue_pkey"],
    "revive": ["postroom_queue_pkey"],
    "finish": ["postroom_queue_pkey"],
    "dequeue": ["postroom_queue_pkey"],
    "delete_messages": ["postroom_message_pkey"],
    "set_error": ["postroom_queue_pkey"],
    "lock_dead": ["postroom_queue_pkey"],
    "find_waiting": ["postroom_queue_ready", "postroom_queue_line", "postroom_queue_pkey", "postroom_message_pkey"],
    "lock_waiting": ["postroom_queue_pkey"],
}

# The columns that the condition of an index scan must name: without them the scan reads the whole index.
LEADING = {
    "postroom_message_key": ("box", "message_id"),
    "postroom_queue_line": ("box", "group_id"),
    "postroom_queue_held": ("box",),
    "postroom_queue_ready": ("box", "available_at"),
    "postroom_queue_collapse": ("box", "collapse_key"),
    "postroom_queue_expires": ("box", "expires"),
    "postroom_queue_dead": ("box",),
    "postroom_queue_seen": ("box",),
    "postroom_ledger_completed": ("box",),
    "postroom_nudge_box": (),  # the table is almost empty
}
MAKING = """
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
SELECT i, 'inbox:inbox', 's', 'm' || i, 't', '{}', 'json', now(), now() FROM generate_series(1, %(rows)s) i;

INSERT INTO postroom_queue (id, box, state, available_at, group_id)
SELECT id, box, 1, first_seen, CASE id %% 2 WHEN 0 THEN 'g' || (id %% 1000) END
  FROM postroom_message WHERE id <= %(rows)s * 9 / 10;

INSERT INTO postroom_ledger (id, box, completed_at, ending, attempt, deliveries)
SELECT id, box, first_seen, 'handled', 0, 1 FROM postroom_message WHERE id > %(rows)s * 9 / 10
"""


@pytest.fixture(
    scope="module", params=["empty", "nearly empty", "drained", "half drained", "without statistics", "analyzed"]
)
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A connection with plans that were made on tables of this kind. The tables have many messages now: half of them in
    a thousand groups, a tenth done."""
    early = request.param not in {"without statistics", "analyzed"}
    url = _new_database() if early else _full_database()
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SERVER_SETTINGS.items())
    with psycopg.connect(url, autocommit=True, options=options) as connection:
        connection.prepare_threshold = None  # psycopg would deallocate our statements together with its own
        if early:
            _make_small(connection, request.param)
        elif request.param == "analyzed":
            _full_database.cache_clear()  # from now on it has statistics
            connection.execute("ANALYZE")
        _prepare_all(connection)
        if early:
            _make(connection, FEW)
        yield connection


def _new_database() -> str:
    url = create_database()
    with Postroom(url) as room:
        room.migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("message", "queue", "ledger", "nudge"):
            connection.execute(f"ALTER TABLE postroom_{table} SET (autovacuum_enabled = false)".encode())
    return url


@functools.cache
def _full_database() -> str:
    """Returns the URL of a database with ROWS messages and without statistics. To fill it takes many seconds."""
    url = _new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        _make(connection, ROWS)
    return url


def _make(connection: psycopg.Connection[Any], rows: int) -> None:
    psycopg.ClientCursor(connection).execute(MAKING, {"rows": rows})


def _make_small(connection: psycopg.Connection[Any], kind: str) -> None:
    if kind == "empty":
        return
    _make(connection, 20 if kind == "nearly empty" else FEW)
    if kind == "half drained":
        connection.execute("DELETE FROM postroom_queue WHERE id > 2")
    elif kind == "drained":
        connection.execute("DELETE FROM postroom_queue")
    connection.execute("VACUUM ANALYZE")
    if kind != "drained":
        connection.execute("DELETE FROM postroom_queue")
    connection.execute("DELETE FROM postroom_ledger")
    connection.execute("DELETE FROM postroom_message")


@pytest.mark.req("IBX-122", "OBX-113", "IBX-125", "IBX-117", "RHI-022", "RHI-148")
def test_finds_rows_by_index(connection: psycopg.Connection[Any]) -> None:
    """One test for all statements: to fill the tables takes longer than to plan."""
    found = {name: _plan(connection, name) for name in HOT}
    missing = {name: plan for name, plan in found.items() if any(index not in plan for index in HOT[name])}
    assert not missing, "\n\n".join(f"{name}\n{plan}" for name, plan in missing.items())
    scans = {name: scans for name, plan in found.items() if (scans := list(_whole_scans(plan)))}
    assert not scans, "\n\n".join(f"{name} {scans}\n{found[name]}" for name, scans in scans.items())
    assert "Sort" not in found["purge_done"], "a sort would read and lock all old rows before the limit applies"


def _whole_scans(plan: str) -> Iterator[str]:
    """Yields scans that read a whole table or index, and joins that read both sides completely."""
    lines = plan.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if re.search(r"Seq Scan on postroom_(?!schema)|Merge Join|Hash .*Join", line):
            yield line.strip()
        if index := re.search(r"Index (?:Only )?Scan.* using (\w+)", line):
            condition = following.partition("Index Cond: ")[2]
            if not all(re.search(rf"\b{column}\b", condition) for column in LEADING.get(index[1], ("id",))):
                yield f"{line.strip()} {condition}"


def test_a_claim_reads_only_the_rows_that_it_claims_by_hot_updates(connection: psycopg.Connection[Any]) -> None:
    """Half of the fifty rows are in a line: to claim them writes the held index. The others are HOT updates."""
    connection.execute("BEGIN")
    plan = _plan(connection, "exchange", analyze=True)
    updates = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'postroom_queue'"
    written = connection.execute(updates).fetchone()
    connection.execute("ROLLBACK")
    rows = [int(count) for count in re.findall(r"Scan using postroom_\w+ on postroom_\w+.*?rows=(\d+)", plan)]
    assert rows
    assert max(rows) <= 50, plan
    assert written == (50, 25)


def test_a_page_reads_only_what_it_shows(connection: psycopg.Connection[Any]) -> None:
    plan = _plan(connection, "find_nearby", analyze=True)
    rows = [int(count) for count in re.findall(r"Scan using postroom_\w+ on postroom_\w+.*?rows=(\d+)", plan)]
    assert rows
    assert max(rows) <= 50, plan


def test_what_is_not_due_yet_costs_a_claim_nothing(connection: psycopg.Connection[Any]) -> None:
    connection.execute("BEGIN")
    connection.execute(
        "INSERT INTO postroom_queue (id, box, state, available_at) "
        "SELECT i, 'inbox:later', 1, now() + interval '1 day' FROM generate_series(-20000, -1) i"
    )
    for name in ("exchange", "find_candidates", "find_expired_leases"):
        before = _pages(connection)
        _explain(connection, name, "ANALYZE", box="inbox:later")
        assert _pages(connection) - before < 50, name
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("waits", ["-1 hour", "2 days"], ids=["due", "not due"])
def test_a_look_reads_the_first_row_and_the_claimed_ones(connection: psycopg.Connection[Any], waits: str) -> None:
    """If a row is due, it reads the claimed ones once, otherwise twice."""
    box = f"inbox:{secrets.token_hex(8)}"  # the database has the dead rows of earlier tests
    connection.execute("BEGIN")
    connection.execute(
        "INSERT INTO postroom_queue (id, box, state, available_at, lease_until) "
        "SELECT i, %s, 2, now() - interval '1 day', now() + interval '1 day' FROM generate_series(-20010, -20001) i",
        [box],
    )
    connection.execute(
        "INSERT INTO postroom_queue (id, box, state, available_at) "
        "SELECT i, %s, 1, now() + %s FROM generate_series(-20000, -1) i",
        [box, waits],
    )
    before = _pages(connection)
    plan = _explain(connection, "attend", "ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF", boxes=[box])
    pages = _pages(connection) - before
    connection.execute("ROLLBACK")
    assert pages < 50, plan
    assert ("never executed" in plan) is (waits == "-1 hour")


def _pages(connection: psycopg.Connection[Any]) -> int:
    """Returns how many pages of the queue and its ready index this transaction has read."""
    found = connection.execute(
        "SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid)) FROM pg_class c "
        "WHERE c.relname IN ('postroom_queue', 'postroom_queue_ready')"
    ).fetchone()
    assert found is not None
    return int(found[0])


def _prepare_all(connection: psycopg.Connection[Any]) -> None:
    for name in HOT:
        _prepare(connection, name)


def _plan(connection: psycopg.Connection[Any], name: str, *, analyze: bool = False) -> str:
    options = "ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF" if analyze else "COSTS OFF"
    return _explain(connection, name, options)


def _prepare(connection: psycopg.Connection[Any], name: str) -> None:
    """Prepares a statement and makes the plan that is kept."""
    text = PostgresEngine().statements[name]
    connection.execute(f"PREPARE {name} AS {text.numbered}".encode())
    _explain(connection, name, "COSTS OFF")


def _explain(connection: psycopg.Connection[Any], name: str, options: str, **given: Any) -> str:
    text = PostgresEngine().statements[name]
    values = [sql.Literal(given.get(each) or _value(name, each, text.named)) for each in text.parameters]
    query = sql.SQL("EXPLAIN ({}) EXECUTE {} ({})").format(
        sql.SQL(options),
        sql.Identifier(name),
        sql.SQL(", ").join(values),
    )
    return "\n".join(row[0] for row in connection.execute(query).fetchall())


def _value(statement: str, parameter: str, text: str) -> Any:
    """Returns a value of the right type, by the cast in the text if there is one."""
    cast = re.search(rf":{parameter}::(\w+(?:\[\])?)", text)
    kind = cast[1] if cast else ""
    if kind in {"bigint[]", "integer[]"}:
        return [1, 2, 3]
    if kind == "text[]":
        return None if parameter == "topics" else ["g1", "g2", "g3"]
    if kind == "text" and statement in {"find_nearby", "find_waiting"}:
        return None
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
        "nearby": 10_000,
        **dict.fromkeys(("seen", "waiting", "claimed", "done", "dead"), 1),
        "sliding": 0,
        "blocking": 0,
        "suspects": 1,
        "suspect_from": 2,
        "rows": 10_000,
    }
    return known.get(parameter)
