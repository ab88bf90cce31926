"""`postroom migrate` and `postroom schema`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from postroom.sync import Postroom
from tests.cli.conftest import Run, RunEach, output_of
from tests.postgres import create_database, with_driver

URL = "sqlite:///shop.db"


@pytest.mark.req("RHI-072", "RHI-136")
def test_migrate_makes_the_tables_once(run_each: RunEach, tmp_path: Path) -> None:
    first, second, json = run_each(
        ("migrate", "--url", URL), ("migrate", "--url", URL), ("migrate", "--url", URL, "--json")
    )
    assert (first.returncode, first.stdout) == (0, "sqlite:shop.db: applied schema version 1\n")
    assert (second.returncode, second.stdout) == (0, "sqlite:shop.db: nothing to do\n")
    assert output_of(json) == {"store": "sqlite:shop.db", "applied": []}
    with Postroom(f"sqlite:///{tmp_path / 'shop.db'}") as room:
        assert room.inbox().enqueue("topic", "text", source="shop", message_id="1").is_new


MODULE = """\
from postroom import Postroom

room = Postroom("sqlite:///shop.db", prefix="mail_")
broken = Postroom("sqlite:///missing/shop.db")
"""


def test_a_room_in_a_module_has_its_own_database_and_names(run_each: RunEach, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    script, first, second, broken = run_each(
        ("schema", "shop:room"),
        ("migrate", "shop:room"),
        ("migrate", "shop:room", "--json"),
        ("migrate", "shop:broken"),
    )
    assert "CREATE TABLE mail_queue" in script.stdout
    assert (first.returncode, first.stdout) == (0, "sqlite:shop.db: applied schema version 1\n")
    assert output_of(second) == {"store": "sqlite:shop.db", "applied": []}
    assert (broken.returncode, broken.stderr) == (1, "postroom: unable to open database file\n")
    with Postroom(f"sqlite:///{tmp_path / 'shop.db'}", prefix="mail_") as room:
        assert room.outbox().enqueue("topic", "text").is_new


def test_a_store_without_tables_says_so(run_each: RunEach) -> None:
    [ran] = run_each(("migrate", "--url", "redis://nowhere.invalid"))
    assert ran.returncode == 0
    assert ran.stdout == "redis:nowhere.invalid/: there are no tables to make in such a store; it was not opened\n"


def test_the_option_goes_before_the_environment(run_each: RunEach, tmp_path: Path) -> None:
    given, default = run_each(
        ("migrate", "--json", "--url", "sqlite:///given.db"), ("migrate", "--json"), POSTROOM_URL=URL
    )
    assert output_of(given) == {"store": "sqlite:given.db", "applied": [1]}
    assert output_of(default) == {"store": "sqlite:shop.db", "applied": [1]}
    assert {"given.db", "shop.db"} <= {path.name for path in tmp_path.iterdir()}


WRONG: dict[tuple[str, ...], str] = {
    (): "no database: pass a URL such as sqlite:///shop.db, postgresql://host/shop or redis://host, or set",
    ("--url", "shop.db"): "this is not a URL",
    ("--url", "oracle://scott:tiger@host"): "there is no store for oracle://",
    ("--url", "sqlite:///missing/shop.db"): "unable to open database file",
    ("--url", "sqlite:///text.db"): "file is not a database",
    ("--url", "sqlite:///shop.db", "--schema", "mail"): "sqlite:/// knows no schema: leave it out",
    ("--url", "postgresql://db/shop", "--schema", "it's"): 'schema "it\'s" cannot name a schema',
    ("--url", "postgresql+psycopg2://scott:tiger@db/shop"): "async code has no driver 'psycopg2' for PostgreSQL",
}


def test_what_is_wrong_is_said_in_one_line(run_each: RunEach, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    for said, ran in zip(WRONG.values(), run_each(*(("migrate", *url) for url in WRONG)), strict=True):
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(f"postroom: {said}")
        assert ran.stderr.count("\n") == 1
        assert "tiger" not in ran.stderr


def test_tables_of_a_newer_version_that_breaks_are_left_alone(run: Run, tmp_path: Path) -> None:
    Postroom(f"sqlite:///{tmp_path / 'shop.db'}").migrate()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("INSERT INTO postroom_schema VALUES (999, 'breaking_future')")
    ran = run("migrate", "--url", URL)
    assert ran.returncode == 1
    assert ran.stderr.startswith("postroom: the tables are at version 999")


@pytest.mark.parametrize("prefix", ["postroom_", "mail_"])
def test_the_script_makes_what_migrate_makes(run_each: RunEach, tmp_path: Path, prefix: str) -> None:
    where = ("--url", URL, "--prefix", prefix)
    script, older_call, migration = run_each(("schema", *where), ("schema", "--sql", *where), ("migrate", *where))
    assert (script.returncode, migration.returncode) == (0, 0)
    assert older_call.stdout == script.stdout
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


def test_the_script_comes_in_json_too(run_each: RunEach) -> None:
    plain, wrapped = run_each(("schema", "--sql", "--url", URL), ("schema", "--json", "--url", URL))
    assert output_of(wrapped) == {"store": "sqlite:shop.db", "sql": plain.stdout}


PLACES: list[dict[str, str]] = [{}, {"schema": 'the "Mail"', "prefix": "Acme_"}]


def options(place: dict[str, str]) -> list[str]:
    return [word for name, value in place.items() for word in (f"--{name}", value)]


@pytest.mark.parametrize("place", PLACES, ids=["plain", "named"])
def test_the_script_for_postgresql_is_printed_without_a_server(run: Run, place: dict[str, str]) -> None:
    """The server cannot be reached and is not contacted. The printed SQL creates what this version needs."""
    printed = run("schema", "--sql", "--url", "postgresql://scott:tiger@nowhere.invalid/shop", *options(place))
    assert (printed.returncode, printed.stderr) == (0, "")
    url = create_database()
    with psycopg.connect(url) as connection:
        connection.execute(printed.stdout.encode())
    with Postroom(url, **place) as room:  # type: ignore[arg-type]
        assert room.migrate() == []
        assert room.outbox().enqueue("topic", "text").is_new


def test_the_script_names_no_credential(run: Run) -> None:
    printed = run("schema", "--json", "--url", "postgresql://scott:tiger@nowhere.invalid/shop")
    assert output_of(printed)["store"] == "postgresql:nowhere.invalid/shop"
    assert "tiger" not in printed.stdout


@pytest.mark.parametrize("place", PLACES, ids=["plain", "named"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_migrate_works_with_every_driver_and_name(run_each: RunEach, driver: str, place: dict[str, str]) -> None:
    url = create_database()
    command = ("migrate", "--json", "--url", with_driver(url, driver), *options(place))
    first, second = map(output_of, run_each(command, command))
    assert (first["applied"], second["applied"]) == ([1], [])
    with Postroom(url, **place) as room:  # type: ignore[arg-type]
        assert room.outbox().enqueue("topic", "text").is_new


def test_tables_that_are_missing_are_named_with_the_command_that_makes_them(run_each: RunEach) -> None:
    url = create_database()
    status = ("status", "--url", url, "--schema", "mail", "--prefix", "shop_")
    missing, made, there = run_each(status, ("migrate", *status[1:]), status)
    assert missing.returncode == 1
    assert "run `postroom migrate --schema mail --prefix shop_`" in missing.stderr
    assert (made.returncode, there.returncode) == (0, 0)
