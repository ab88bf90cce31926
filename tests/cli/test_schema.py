"""`postroom migrate` and `postroom schema`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postroom.sync import Postroom
from tests.cli.conftest import Run

URL = "sqlite:///shop.db"


def test_migrate_makes_the_tables_once(run: Run, tmp_path: Path) -> None:
    first, second = run("migrate", "--url", URL), run("migrate", "--url", URL)
    assert (first.returncode, first.stdout) == (0, "sqlite:shop.db: applied schema version 1\n")
    assert (second.returncode, second.stdout) == (0, "sqlite:shop.db: nothing to do\n")
    with Postroom(f"sqlite:///{tmp_path / 'shop.db'}") as room:
        assert room.inbox().enqueue("topic", "text", source="shop", message_id="1").is_new


def test_migrate_answers_in_json(run: Run) -> None:
    first, second = run("migrate", "--url", URL, "--json"), run("migrate", "--url", URL, "--json")
    assert json.loads(first.stdout) == {"store": "sqlite:shop.db", "applied": [1]}
    assert json.loads(second.stdout) == {"store": "sqlite:shop.db", "applied": []}


def test_the_url_comes_from_the_environment(run: Run, tmp_path: Path) -> None:
    assert run("migrate", POSTROOM_URL=URL).returncode == 0
    assert (tmp_path / "shop.db").exists()


def test_the_option_goes_before_the_environment(run: Run, tmp_path: Path) -> None:
    assert run("migrate", "--url", "sqlite:///given.db", POSTROOM_URL=URL).returncode == 0
    assert (tmp_path / "given.db").exists()
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "no database: pass a URL such as sqlite:///shop.db, or set POSTROOM_URL"),
        ("shop.db", "this is not a URL"),
        ("oracle://scott:tiger@host", "there is no store for oracle://"),
        ("sqlite:///missing/shop.db", "unable to open database file"),
        ("sqlite:///text.db", "file is not a database"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Run, tmp_path: Path, url: str | None, said: str) -> None:
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    ran = run("migrate", *(["--url", url] if url else []))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"postroom: {said}")
    assert ran.stderr.count("\n") == 1
    assert "tiger" not in ran.stderr


def test_tables_of_a_newer_version_are_left_alone(run: Run, tmp_path: Path) -> None:
    run("migrate", "--url", URL)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("INSERT INTO postroom_schema VALUES (999, 'future')")
    ran = run("migrate", "--url", URL)
    assert ran.returncode == 1
    assert ran.stderr.startswith("postroom: the tables are at version 999")


@pytest.mark.parametrize("prefix", ["postroom_", "mail_"])
def test_the_script_makes_what_migrate_makes(run: Run, tmp_path: Path, prefix: str) -> None:
    script = run("schema", "--sql", "--url", URL, "--prefix", prefix)
    assert script.returncode == 0
    assert run("migrate", "--url", URL, "--prefix", prefix).returncode == 0
    everything = "SELECT name, sql FROM sqlite_master ORDER BY name"
    with closing(sqlite3.connect(tmp_path / "shop.db")) as migrated, closing(sqlite3.connect(":memory:")) as scripted:
        scripted.executescript(script.stdout)
        names = [name for name, _ in scripted.execute(everything) if not name.startswith("sqlite_")]
        assert names == [name for name, _ in migrated.execute(everything) if not name.startswith("sqlite_")]
        assert all(name.startswith(prefix) for name in names)
        versions = f"SELECT * FROM {prefix}schema"
        assert scripted.execute(versions).fetchall() == migrated.execute(versions).fetchall()


def test_a_store_without_tables_has_no_script(run: Run) -> None:
    ran = run("schema", "--sql", "--url", "memory://")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "postroom: memory has no tables\n")


def test_schema_wants_to_be_told_the_form(run: Run) -> None:
    ran = run("schema", "--url", URL)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--sql" in ran.stderr
