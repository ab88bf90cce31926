"""Commands over many stores: from a TOML file, or from a room in a module."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import OwnerToken, State
from postroom.sync import Postroom
from tests.cli.conftest import IN_A_TERMINAL, Ran, Run, RunEach, Start, output_of
from tests.cli.shop import write_module
from tests.postgres import create_database

DOWN = "postgresql://scott:tiger@127.0.0.1:1/shop"
FILE = ("--stores", "stores.toml")

MODULE = """\
from postroom import Postroom

room = Postroom(stores={"acme": "sqlite:///acme.db", "globex": "sqlite:///globex.db"})
found = Postroom(discover=lambda: {"acme": "sqlite:///acme.db", "globex": "sqlite:///globex.db"})
for each in (room, found):
    each.inbox("orders")


@room.inbox("orders").handler("order.placed")
async def placed(message):
    print("handled", message.store, message.message_id, flush=True)
"""


def write_file(folder: Path, **stores: str) -> None:
    lines = [f'{key} = "{url}"' for key, url in stores.items()]
    (folder / "stores.toml").write_text("\n".join(["[stores]", *lines]), "utf-8")


def open_stores(folder: Path, *keys: str) -> Postroom:
    urls = {key: f"sqlite:///{folder / key}.db" for key in keys}
    return Postroom(stores=urls, deploy_schema=True)


def fill(room: Postroom, key: str, *, dead: int = 0, waiting: int = 0) -> None:
    orders, owner = room.router.inbox(key, "orders"), OwnerToken.new()
    for number in range(dead):
        orders.enqueue("order.placed", {}, source="web", message_id=f"{key}-dead-{number}")
    if dead:
        orders.fail(owner, orders.claim(owner), f"no stock in {key}")
    for number in range(waiting):
        orders.enqueue("order.placed", {}, source="web", message_id=f"{key}-{number}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three stores, one of which cannot be reached: 2 dead letters in acme, 1 waiting message in globex."""
    write_file(tmp_path, acme="sqlite:///acme.db", globex="sqlite:///globex.db", down=DOWN)
    write_module(tmp_path, MODULE)
    with open_stores(tmp_path, "acme", "globex") as room:
        fill(room, "acme", dead=2)
        fill(room, "globex", waiting=1)
    return tmp_path


def result_of(ran: Ran) -> Any:
    """Returns the JSON of a command that failed in some stores."""
    assert (ran.returncode, ran.stderr) == (1, "")
    return json.loads(ran.stdout)


def orders_of(rows: Any) -> dict[str, int]:
    [row] = [row for row in rows if row["name"] == "orders"]
    return {state: row[state] for state in ("waiting", "done", "dead")}


# -- the file --------------------------------------------------------------------------------------------------------

WRONG: dict[str, str] = {
    "": "there are no stores: write [stores]",
    "[stores]": "there are no stores: write [stores]",
    "acme = ": "this is not TOML: Invalid value",
    "stores = 3": "stores must be a table: write [stores]",
    '[store]\nacme = "memory://"': "there is no store; there are stores, room",
    "[stores]\nacme = 3": "store 'acme': this must be a URL or a StoreConfig, not int",
    '[stores]\nacme = { urll = "memory://" }': "there is no stores.acme.urll; there are url, prefix, schema,",
    '[stores]\nacme = { pool = "mine" }': "there is no stores.acme.pool",
    '[stores]\nacme = { schema = "mail" }': "store 'acme': the url is missing",
    '[stores]\nacme = "oracle://scott:tiger@host"': "store 'acme': there is no store for oracle://",
    '[stores]\nacme = "postgresql://scott:tiger@[host/shop"': "store 'acme': this postgresql:// URL cannot be read",
    '[stores]\nacme = "scott:tiger@host"': "store 'acme': this is not a URL",
    '[stores]\nacme = { url = "memory://", weight = 0 }': "store 'acme': weight must be between",
    '[stores]\nacme = "postgresql://scott:${UNSET}@host/shop"': "stores.acme needs the environment variable UNSET, ",
    '[stores]\nacme = { url = "${UNSET}" }': "stores.acme.url needs the environment variable UNSET, ",
    '[stores]\nacme = "postgresql://scott:$tiger@host/shop"': "stores.acme has a $ alone: write ${NAME}",
    '[stores]\nacme = "memory://"\n[room]\nurl = "memory://"': "there is no room.url; there are hub, open_stores",
    '[stores]\nacme = "memory://"\n[room]\nopen_stores = 0': "open_stores must be",
}


def test_what_is_wrong_in_the_file_is_one_line_without_a_password(run_each: RunEach, tmp_path: Path) -> None:
    for number, text in enumerate(WRONG):
        (tmp_path / f"{number}.toml").write_text(text, "utf-8")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    commands = [("status", "--stores", f"{number}.toml") for number in range(len(WRONG))]
    *all_ran, binary = run_each(*commands, ("status", "--stores", "bytes.toml"))
    for number, (text, said) in enumerate(WRONG.items()):
        ran = all_ran[number]
        assert (ran.returncode, ran.stdout) == (1, ""), text
        assert ran.stderr.startswith(f"postroom: {number}.toml: {said}"), (text, ran.stderr)
        assert ran.stderr.count("\n") == 1, text
        assert "tiger" not in ran.stderr
    assert binary.stderr == "postroom: bytes.toml: this is not TOML: it is not in UTF-8\n"


def test_environment_variables_are_filled_in(run: Run, tmp_path: Path) -> None:
    (tmp_path / "stores.toml").write_text(
        '[stores]\nacme = "${WHOLE}"\nglobex = { url = "sqlite:///${NAME}$$.db", prefix = "mail_" }\n', "utf-8"
    )
    ran = run("migrate", *FILE, "--json", WHOLE="sqlite:///whole.db", NAME="part")
    assert [store["store"] for store in output_of(ran)["stores"]] == ["acme", "globex"]
    assert {"whole.db", "part$.db"} <= {path.name for path in tmp_path.iterdir()}
    with closing(sqlite3.connect(tmp_path / "part$.db")) as connection:
        assert connection.execute("SELECT count(*) FROM mail_queue").fetchone() == (0,)


LEFT_OUT_MODULE = """\
from postroom import Postroom

room = Postroom(discover=lambda: {"acme": "sqlite:///acme.db", "bad": "scott:tiger@host"})
"""


def test_stores_that_are_left_out_have_failed(run_each: RunEach, tmp_path: Path) -> None:
    write_file(tmp_path, acme=f"sqlite:///{tmp_path}/acme.db", bad="scott:tiger@host")
    (tmp_path / "left.py").write_text(LEFT_OUT_MODULE, "utf-8")
    commands = [("migrate", *FILE), ("migrate", "left:room"), ("status", *FILE), ("status", "left:room")]
    for arguments, ran in zip(commands, run_each(*((*each, "--json") for each in commands)), strict=True):
        assert ran.returncode == 1, (arguments, ran.stderr)
        shown = json.loads(ran.stdout)
        assert [each["store"] for each in shown["stores"]] == ["acme"], arguments
        assert [each["store"] for each in shown["failed"]] == ["bad"], arguments
        assert "this is not a URL" in shown["failed"][0]["error"]
        assert "tiger" not in ran.stdout + ran.stderr


WRONG_CALLS: dict[tuple[str, ...], str] = {
    ("status", *FILE, "--url", "memory://"): "leave out --url",
    ("status", *FILE, "shop:room"): "pass a room or --stores, not both",
    ("status", "--stores", "missing.toml"): "does not exist",
    ("status", "--url", "memory://", "--store", "acme"): "there is one store here",
    ("dead", "show", "1", *FILE, "--inbox", "orders"): "a message belongs to one of these 3 stores",
    ("dead", "replay", "1", *FILE, "--inbox", "orders"): "a message belongs to one of these 3 stores",
    ("dead", "list", *FILE, "--inbox", "orders", "--after", "1"): "belongs to one of these 3 stores",
    ("cancel", "1", *FILE, "--inbox", "orders"): "a message belongs to one of these 3 stores",
    ("groups", "skip", "ann", "--room", "shop:room", "--inbox", "orders"): "a group belongs to one of these 2 stores",
    ("join", "show", "3f1c8c1e-6a52-4d8e-9d0f-2b9f6d0c1a77", *FILE): "a join belongs to one of these 3 stores",
    ("schema", *FILE): "a schema belongs to one of these 3 stores",
}


def test_wrong_calls(run_each: RunEach, folder: Path) -> None:
    for (arguments, said), ran in zip(WRONG_CALLS.items(), run_each(*WRONG_CALLS), strict=True):
        assert (ran.returncode, ran.stdout) == (2, ""), arguments
        assert said in " ".join(re.sub("[│╭╰─╮╯]", " ", ran.stderr).split()), (arguments, ran.stderr)


def test_an_unknown_store_and_an_unknown_box_are_one_line(run_each: RunEach, folder: Path) -> None:
    store, box, note = run_each(
        ("status", *FILE, "--store", "nope"),
        ("dead", "list", "--room", "shop:room", "--inbox", "nope"),
        ("dead", "list", *FILE, "--store", "acme", "--store", "globex", "--inbox", "nope"),
    )
    assert (store.returncode, store.stderr) == (1, "postroom: this room has no store 'nope'; it has 3 others\n")
    assert (box.returncode, box.stderr) == (1, "postroom: the room has no inbox 'nope'; it has inbox 'orders'\n")
    assert (note.returncode, note.stdout) == (0, "there are none\n")
    assert note.stderr == "there is nothing in inbox:nope; there is in inbox:orders, as in 1 other store\n"


# -- status ----------------------------------------------------------------------------------------------------------


def test_status_shows_totals_the_stores_with_trouble_and_those_that_failed(run_each: RunEach, folder: Path) -> None:
    table, everything, in_json, some = run_each(
        ("status", *FILE),
        ("status", *FILE, "--all"),
        ("status", *FILE, "--json"),
        ("status", *FILE, "--json", "--store", "globex"),
    )
    assert (table.returncode, table.stderr) == (1, "")
    first, *rows = table.stdout.splitlines()
    assert first == "3 stores, 1 failed, 1 with dead letters or failed joins"
    cells = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows if "│" in row]
    assert [(row[0], row[1], *row[3:]) for row in cells if row[2] == "orders"] == [
        ("all", "inbox", "0", "1", "0", "0", "2"),
        ("acme", "inbox", "0", "0", "0", "0", "2"),
    ]
    [failed] = [row for row in cells if row[1] == "failed"]
    assert failed[0] == "down"
    assert "Connect call failed" in failed[2]
    assert "│ globex │" in everything.stdout
    shown = result_of(in_json)
    assert orders_of(shown["boxes"]) == {"waiting": 1, "done": 0, "dead": 2}
    assert {store["store"]: orders_of(store["boxes"]) for store in shown["stores"]} == {
        "acme": {"waiting": 0, "done": 0, "dead": 2},
        "globex": {"waiting": 1, "done": 0, "dead": 0},
    }
    assert [store["store"] for store in shown["failed"]] == ["down"]
    assert "tiger" not in table.stdout + in_json.stdout
    assert [store["store"] for store in output_of(some)["stores"]] == ["globex"]


def test_status_of_a_hundred_stores_is_readable(run: Run, tmp_path: Path) -> None:
    keys = [f"t{number:03}" for number in range(100)]
    write_file(tmp_path, **{key: f"sqlite:///{key}.db" for key in keys})
    with open_stores(tmp_path, *keys) as room:
        for number, key in enumerate(keys):
            fill(room, key, dead=number % 4, waiting=1)
    ran = run("status", *FILE)
    assert ran.returncode == 0
    first, *rows, last = ran.stdout.splitlines()
    assert first == "100 stores, 0 failed, 75 with dead letters or failed joins"
    assert last == "and 55 more stores: --all"
    cells = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows if "│" in row]
    assert cells[0] == ["all", "inbox", "orders", "0", "100", "0", "0", "150"]
    assert len(cells) == 21
    assert {row[-1] for row in cells[1:]} == {"3"}  # those with the most dead letters


# -- dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_for_each_store(run_each: RunEach, folder: Path) -> None:
    listed, in_json, shown = run_each(
        ("dead", "list", *FILE, "--inbox", "orders"),
        ("dead", "list", *FILE, "--inbox", "orders", "--json", "--limit", "1"),
        ("dead", "show", "acme-dead-1", *FILE, "--store", "acme", "--inbox", "orders"),
    )
    assert listed.returncode == 1
    assert listed.stdout.startswith("acme:\n  acme-dead-0  from web")
    assert "globex" not in listed.stdout
    assert listed.stderr.splitlines() == [
        "postroom: store 'down': [Errno 111] Connect call failed ('127.0.0.1', 1)",
        "postroom: 1 store failed",
    ]
    acme, globex = result_of(in_json)["stores"]
    assert (acme["store"], [letter["message_id"] for letter in acme["messages"]]) == ("acme", ["acme-dead-0"])
    assert isinstance(acme["next"], int)
    assert (globex["store"], globex["messages"], globex["next"]) == ("globex", [], None)
    assert shown.returncode == 0
    assert "no stock in acme" in shown.stdout


def test_dead_letters_of_all_stores_are_replayed_after_a_question(run: Run, folder: Path) -> None:
    with open_stores(folder, "acme", "globex") as room:
        fill(room, "globex", dead=1)
    command = ("dead", "replay", *FILE, "--inbox", "orders", "--all")
    dry = run(*command, "--dry-run", "--json")
    assert {store["store"]: store["count"] for store in result_of(dry)["stores"]} == {"acme": 2, "globex": 2}
    refused = run(*command, stdin="n\n")
    assert "replay 4 dead letters of inbox 'orders' in 2 stores?" in refused.stderr
    assert "globex:\n  globex-0" in refused.stdout
    replayed = run(*command, "--yes")
    assert (replayed.returncode, replayed.stdout.splitlines()[-1]) == (1, "replayed 4 in 2 stores")
    with open_stores(folder, "acme", "globex") as room:
        assert [room.router.inbox(key, "orders").counts()[State.DEAD] for key in ("acme", "globex")] == [0, 0]
    named = run("dead", "replay", "acme-dead-0", *FILE, "--store", "acme", "--inbox", "orders")
    assert (named.returncode, named.stdout) == (0, "replayed 0 in 1 store; 1 were not dead and left alone\n")


def test_dead_letters_of_all_stores_are_purged(run_each: RunEach, folder: Path) -> None:
    kept, deleted = run_each(
        ("dead", "purge", "--room", "shop:room", "--inbox", "orders", "--older-than", "1d", "--yes", "--json"),
        ("dead", "purge", "--room", "shop:room", "--inbox", "orders", "--older-than", "0s", "--yes"),
    )
    assert [store["deleted"] for store in output_of(kept)["stores"]] == [0, 0]
    assert (deleted.returncode, deleted.stdout) == (0, "deleted 2 in 1 store\n")


# -- the other commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ["shop:room", "shop:found"])
def test_a_room_in_a_module_declares_its_boxes(run_each: RunEach, folder: Path, room: str) -> None:
    status, listed, cancelled, groups = run_each(
        ("status", room, "--json"),
        ("dead", "list", "--room", room, "--inbox", "orders", "--json"),
        ("cancel", "--room", room, "--inbox", "orders", "--topic", "order.placed", "--yes"),
        ("groups", "list", "--room", room, "--inbox", "orders"),
    )
    assert orders_of(output_of(status)["boxes"]) == {"waiting": 1, "done": 0, "dead": 2}
    assert [len(store["messages"]) for store in output_of(listed)["stores"]] == [2, 0]
    assert cancelled.stdout.splitlines()[-1] == "cancelled 1 in 1 store"
    assert (groups.returncode, groups.stdout) == (0, "no group is blocked\n")


def test_purge_says_what_it_deletes_in_all_stores(run: Run, folder: Path) -> None:
    with open_stores(folder, "acme", "globex") as room:
        owner = OwnerToken.new()
        for key in ("acme", "globex"):
            fill(room, key, waiting=3)
            orders = room.router.inbox(key, "orders")
            orders.ack(owner, orders.claim(owner))
    command = ("purge", *FILE, "--older-than", "0s")
    refused = run(*command, stdin="n\n")
    assert refused.returncode == 1
    assert "inbox 'orders' in 2 stores: this forgets 6 deduplication keys" in refused.stderr
    deleted = run(*command, "--yes", "--json")
    assert [store["boxes"][0]["deleted"] for store in result_of(deleted)["stores"]] == [3, 3]


def test_a_worker_handles_the_messages_of_all_stores(start: Start, folder: Path) -> None:
    worker = start("run", "shop:room", "--migrate")
    assert worker.line() == "shop:room on 2 stores"
    assert worker.line() == "  inbox orders: order.placed"
    assert worker.line() == "handled globex globex-0"


def test_the_script_of_one_store(run: Run, folder: Path) -> None:
    printed = run("schema", *FILE, "--store", "down")
    assert printed.returncode == 0
    assert "CREATE TABLE postroom_queue" in printed.stdout


# -- migrate ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def databases() -> list[str]:
    return [create_database() for _ in range(3)]


def test_migrate_goes_on_after_a_failure_and_can_be_resumed(run: Run, tmp_path: Path, databases: list[str]) -> None:
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    stores = {f"pg{number}": url for number, url in enumerate(databases)}
    cache = "redis://scott:tiger@127.0.0.1:1/0"
    write_file(tmp_path, text="sqlite:///text.db", down=DOWN, acme="sqlite:///acme.db", cache=cache, **stores)
    first = run("migrate", *FILE, "--parallel", "2")
    assert first.returncode == 1
    assert sorted(first.stdout.splitlines()) == ["1 store: no tables to make", "4 stores: applied schema version 1"]
    said = first.stderr.splitlines()
    assert said[0] == "postroom: store 'text': file is not a database"
    assert said[1].startswith("postroom: store 'down': ")
    assert said[2:] == ["postroom: 2 stores failed"]
    assert "tiger" not in first.stderr
    for url in databases:
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM postroom_queue").fetchone() == (0,)
    (tmp_path / "text.db").unlink()
    second = result_of(run("migrate", *FILE, "--json"))
    assert {store["store"]: store["applied"] for store in second["stores"]} == {
        "text": [1],
        "acme": [],
        "cache": [],
        **{key: [] for key in stores},
    }
    assert [store["store"] for store in second["failed"]] == ["down"]


def test_migrate_shows_its_progress_in_a_terminal(start: Start, tmp_path: Path) -> None:
    write_file(tmp_path, **{f"t{number}": f"sqlite:///t{number}.db" for number in range(5)})
    seen = start("migrate", *FILE, program=IN_A_TERMINAL, TERM="xterm").finish()
    assert seen.returncode == 0
    assert re.search(r"stores .* 5/5 ", seen.stdout)
    assert "5 stores: applied schema version 1" in seen.stdout
