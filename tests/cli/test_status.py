"""`postroom status`: the table, its JSON, and both again and again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import IN_A_TERMINAL, Run, RunEach, Start, output_of
from tests.cli.shop import URL, make_dead_letters, open_shop, write_module

NONE = {"seen": 0, "waiting": 0, "claimed": 0, "done": 0, "dead": 0}


def row(kind: str, name: str, **counts: int) -> dict[str, Any]:
    joins = {"joins": {"pending": 0, "failed": 0}} if kind == "outbox" else {}
    return {"kind": kind, "name": name, **NONE, **counts, **joins}


def test_it_counts_the_boxes_of_a_room_or_those_named(run_each: RunEach, tmp_path: Path) -> None:
    write_module(tmp_path)
    make_dead_letters(tmp_path)
    of_room, of_attribute, default, named, table = run_each(
        ("status", "shop:room", "--json"),
        ("status", "shop:place.room", "--json"),
        ("status", "--url", URL, "--json"),
        ("status", "--url", URL, "--json", "--inbox", "orders", "--inbox", "other", "--outbox", "outbox"),
        ("status", "--url", URL, "--inbox", "orders"),
    )
    orders, outbox = row("inbox", "orders", waiting=1, dead=3), row("outbox", "outbox", dead=2)
    assert output_of(of_room) == {"store": "sqlite:shop.db", "boxes": [orders, row("outbox", "mail")]}
    assert output_of(of_attribute) == output_of(of_room)
    assert output_of(default)["boxes"] == [orders, outbox]  # what the database itself knows
    assert json.loads(named.stdout)["boxes"] == [orders, row("inbox", "other"), outbox]
    assert named.stderr == "there is nothing in inbox:other; there is in inbox:orders, outbox:outbox\n"
    assert (table.returncode, table.stderr) == (0, "")
    [header] = [line.split() for line in table.stdout.splitlines() if "waiting" in line]
    [counts] = [line.split() for line in table.stdout.splitlines() if "orders" in line]
    assert [word for word in header if word != "┃"] == ["box", "name", "seen", "waiting", "claimed", "done", "dead"]
    assert [word for word in counts if word != "│"] == ["inbox", "orders", "0", "1", "0", "0", "3"]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/shop"])
def test_a_server_that_is_not_there_is_one_line(run_each: RunEach, url: str) -> None:
    [ran] = run_each(("status", "--url", url))
    assert ran.returncode == 1
    assert ran.stderr.startswith("postroom: ")
    assert ran.stderr.count("\n") == 1


def test_it_watches_until_it_is_interrupted(start: Start, tmp_path: Path) -> None:
    write_module(tmp_path)
    with open_shop(tmp_path) as room:
        room.migrate()
        lines = start("status", "shop:room", "--watch", "--every", "0.1", "--json")
        table = start("status", "shop:room", "--watch", "--every", "0.1", FORCE_COLOR="1", TERM="xterm")
        assert json.loads(lines.line())["boxes"][0] == row("inbox", "orders")
        table.until("orders")
        room.inbox("orders").enqueue("order.placed", {}, source="web", message_id="1")
        while json.loads(lines.line())["boxes"][0] != row("inbox", "orders", waiting=1):
            pass
        table.until(" 1 ")
        assert lines.end(signal.SIGINT) == (0, "")
        assert table.end(signal.SIGINT) == (0, "")


def test_the_name_of_a_box_is_never_cut(run: Run, start: Start, tmp_path: Path) -> None:
    name = "orders_" + "0123456789" * 4
    with open_shop(tmp_path) as room:
        room.inbox(name).enqueue("t", {}, source="web", message_id="1")
    for command in (("status", "--url", URL), ("purge", "--url", URL)):
        piped = run(*command, COLUMNS="60")
        seen = start(*command, program=IN_A_TERMINAL, COLUMNS="60").finish()
        assert f"│ {name} │" in piped.stdout
        rows = [line.split("│") for line in seen.stdout.splitlines() if line.startswith("│")]
        assert "".join(row[2].strip() for row in rows) == name  # folded
