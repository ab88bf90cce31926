"""`postroom demo`: it proves what it says, and leaves nothing behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.cli.demo import POISON, Report
from tests.cli.conftest import Ran, Start, output_of

GOOD = Report(
    deliveries=600,
    messages=300,
    duplicates_recognised=300,
    failures_retried=40,
    workers_killed=1,
    messages_it_held=25,
    taken_over_by_others=25,
    dead_letters=POISON,
    effects=300 - POISON,
)


def test_the_demo_proves_each_effect_once(start: Start, tmp_path: Path) -> None:
    quiet = start("demo", "--messages", "300", "--json", "--keep")
    shown = start("demo", "--messages", "100").finish()
    report = output_of(quiet.finish())
    assert report["promises_kept"] is True
    assert report["deliveries"] == 600
    assert report["duplicates_recognised"] == report["messages"] == 300
    assert report["failures_retried"] > 0
    assert report["workers_killed"] == 1
    assert report["taken_over_by_others"] == report["messages_it_held"] > 0
    assert report["dead_letters"] == POISON
    assert (report["effects"], report["effects_written_twice"], report["lost"]) == (300 - POISON, 0, 0)
    assert tmp_path in Path(report["file"]).parents
    check_the_database(report["file"])
    check_the_table(shown)
    assert list(tmp_path.iterdir()) == [Path(report["file"]).parent]  # the other left nothing behind


def check_the_database(file: str) -> None:
    """Counts the rows again, independently of the report."""
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT count(*), count(DISTINCT message_id) FROM effects").fetchall() == [(298, 298)]
        statuses = db.execute("SELECT status, count(*) FROM postroom_inbox GROUP BY status").fetchall()
        assert dict(statuses) == {"Done": 298, "Dead": POISON}
        workers = db.execute("SELECT count(DISTINCT worker) FROM effects").fetchone()
        assert workers >= (2,)


def check_the_table(ran: Ran) -> None:
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "killed with kill -9" in ran.stdout
    assert "100/100" in ran.stdout
    assert "effects written twice" in ran.stdout
    assert "Each effect once, nothing lost" in ran.stdout


def test_a_good_report_is_good() -> None:
    assert GOOD.promises_kept


@pytest.mark.parametrize(
    "change",
    [
        {"duplicates_recognised": 299},
        {"taken_over_by_others": 24},
        {"dead_letters": POISON + 1},
        {"effects": 300 - POISON - 1},
        {"effects_written_twice": 1},
        {"lost": 1},
    ],
    ids=str,
)
def test_a_broken_promise_is_noticed(change: dict[str, Any]) -> None:
    assert not replace(GOOD, **change).promises_kept
