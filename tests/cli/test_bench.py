"""`postroom bench`: it measures, and leaves nothing behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import RunEach, output_of
from tests.cli.shop import URL, open_shop

SHORT = ("--messages", "60", "--batch", "25", "--samples", "5", "--idle", "0.6")
RATES = ("enqueue_single", "enqueue_bulk", "drain_single", "drain_batch")


def test_it_measures_a_new_file_and_a_given_database(run_each: RunEach, tmp_path: Path) -> None:
    with open_shop(tmp_path) as room:
        room.inbox().enqueue("topic", {}, source="web", message_id="1")
    table, given = run_each(("bench", *SHORT), ("bench", *SHORT, "--url", URL, "--json"))
    assert (table.returncode, table.stderr) == (0, "")
    for line in ("enqueue, one by one", "drain, 25 at once", "latency when idle, p99", "0.6 s of idling"):
        assert line in table.stdout
    measured = output_of(given)
    assert (measured["store"], measured["messages"], measured["batch"]) == ("sqlite:shop.db", 60, 25)
    assert all(measured[f"{name}_per_second"] > 0 for name in RATES)
    assert 0 < measured["latency_p50_ms"] <= measured["latency_p99_ms"]
    assert 0 < measured["idle_calls_per_second"] < 10  # it polls, but not in circles

    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:  # only the earlier message is left
        assert db.execute("SELECT box, message_id FROM postroom_message").fetchall() == [("inbox:inbox", "1")]
        assert db.execute("SELECT count(*) FROM postroom_ledger").fetchone() == (0,)
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} <= {"shop.db"}
