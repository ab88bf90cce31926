"""`postroom dead`: dead letters."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import closing
from pathlib import Path

from postroom import State
from tests.cli.conftest import IN_A_TERMINAL, Ran, Run, RunEach, Start, output_of
from tests.cli.shop import MODULE, SECRET, URL, make_dead_letters, open_shop, write_module

ORDERS = ("--url", URL, "--inbox", "orders")
OUTBOX = ("--url", URL, "--outbox", "outbox")


def ids(ran: Ran) -> list[str]:
    return [f"{message['source']}/{message['message_id']}" for message in output_of(ran)["messages"]]


def states(folder: Path) -> dict[str, State]:
    with open_shop(folder) as room:
        return {f"{message.source}/{message.message_id}": message.state for message in room.inbox("orders").find()}


def test_list_filters_and_pages(run_each: RunEach, tmp_path: Path) -> None:
    make_dead_letters(tmp_path)
    listing = ("dead", "list", *ORDERS, "--json")
    whole, topic, source, group, page, rest, table, outbox, none = run_each(
        listing,
        (*listing, "--topic", "order.paid"),
        (*listing, "--source", "web"),
        (*listing, "--group", "ann"),
        (*listing, "--limit", "2"),
        (*listing, "--after", "2"),
        ("dead", "list", *ORDERS, "--limit", "2"),
        ("dead", "list", *OUTBOX),
        ("dead", "list", *ORDERS, "--topic", "nothing"),
    )
    assert ids(whole) == ["web/1", "web/2", "phone/1"]
    assert (output_of(whole)["box"], output_of(whole)["next"]) == ("inbox:orders", None)
    assert SECRET not in whole.stdout
    assert ids(topic) == ["web/2"]
    assert ids(source) == ["web/1", "web/2"]
    assert ids(group) == ["phone/1"]
    assert ids(page) == ["web/1", "web/2"]
    assert output_of(page)["next"] == 2
    assert ids(rest) == ["phone/1"]
    assert "order.paid" in table.stdout
    assert "there may be more: --after 2" in table.stdout
    assert "no stock \\x1b[31mred" in table.stdout  # printed, not interpreted
    assert "mail-[bold]bob" in outbox.stdout
    assert (none.returncode, none.stdout) == (0, "there are none\n")


def test_show_prints_everything_and_the_payload_on_request(run_each: RunEach, tmp_path: Path) -> None:
    make_dead_letters(tmp_path)
    plain, payload, json, binary, both, unknown = run_each(
        ("dead", "show", "2", *ORDERS),
        ("dead", "show", "2", *ORDERS, "--payload"),
        ("dead", "show", "2", *ORDERS, "--json"),
        ("dead", "show", "1", *ORDERS, "--source", "phone", "--json", "--payload"),
        ("dead", "show", "1", *ORDERS),
        ("dead", "show", "nothing", *ORDERS),
    )
    for word in ("order.paid", "no stock \\x1b[31mred", "trace-2", "dead", "first_seen"):
        assert word in plain.stdout
    assert SECRET not in plain.stdout
    assert "\x1b" not in plain.stdout
    assert SECRET in payload.stdout
    known = output_of(json)
    assert (known["state"], known["attempt"], known["deliveries"]) == ("dead", 0, 1)
    assert known["headers"] == {"trace": "trace-2"}
    assert known["last_error"].startswith("no stock")
    assert "payload" not in known
    assert base64.b64decode(output_of(binary)["payload"]) == b"\x00\xff"
    assert both.returncode == 1
    assert both.stderr.startswith("postroom: Several sources use this message id")
    assert unknown.stderr == "postroom: there is no message 'nothing' in inbox 'orders'\n"


def make_long_letter(folder: Path) -> dict[str, str]:
    """A dead letter whose values are wider than a terminal. Returns what has to be shown, by name."""
    long = {
        "message_id": "order-" + "0123456789" * 20,
        "topic": "order." + "placed." * 20 + "now",
        "last_error": "no stock: " + "a word and another " * 20 + "end",
        "note": "a payload " * 30 + "end",
    }
    with open_shop(folder) as room:
        room.inbox("orders").enqueue(
            long["topic"],
            {"note": long["note"]},
            source="web",
            message_id=long["message_id"],
            headers={"a": "1"},
            hash=bytes(range(32)),
        )
        room.inbox("orders").mark_dead(long["message_id"], "web", error=long["last_error"])
    return {**long, "hash": bytes(range(32)).hex()}


def test_show_cuts_and_breaks_no_value(run: Run, start: Start, tmp_path: Path) -> None:
    long = make_long_letter(tmp_path)
    command = ("dead", "show", long["message_id"], *ORDERS, "--payload")
    piped = run(*command, COLUMNS="80")
    seen = start(*command, program=IN_A_TERMINAL, COLUMNS="80").finish()
    shown = dict(line.split(maxsplit=1) for line in piped.stdout.splitlines() if len(line.split()) > 1)
    for name in ("message_id", "topic", "last_error", "hash"):
        assert shown[name] == long[name]
    assert shown['"note":'] == f'"{long["note"]}"'
    assert (shown['"a":'], shown["state"]) == ('"1"', "dead")
    assert seen.stdout.replace("\r\n", "\n") == piped.stdout  # the terminal folds it


def test_show_keeps_the_lines_of_an_error_under_its_name(run: Run, tmp_path: Path) -> None:
    with open_shop(tmp_path) as room:
        orders = room.inbox("orders")
        orders.enqueue("t", {}, source="web", message_id="1")
        orders.mark_dead("1", "web", error="no stock\nstate         done")
    shown = run("dead", "show", "1", *ORDERS).stdout
    assert "last_error      no stock\n                state         done\n" in shown


def test_replay_shows_first_and_asks(run: Run, run_each: RunEach, tmp_path: Path) -> None:
    make_dead_letters(tmp_path)
    before = states(tmp_path)
    dry, dry_json, refused, grouped = run_each(
        ("dead", "replay", *ORDERS, "--source", "web", "--dry-run"),
        ("dead", "replay", *ORDERS, "--source", "web", "--dry-run", "--json"),
        ("dead", "replay", *ORDERS, "--source", "web"),  # not confirmed
        ("dead", "replay", *ORDERS, "--all", "--yes"),
    )
    assert dry.stdout.endswith("would replay 2\n")
    assert "order.paid" in dry.stdout
    assert output_of(dry_json)["count"] == 2
    assert ids(dry_json) == ["web/1", "web/2"]
    assert output_of(dry_json)["dry_run"] is True
    assert refused.returncode == 1
    assert "replay 2 dead letters of inbox 'orders'? [y/N]" in refused.stderr
    assert grouped.returncode == 1
    assert "pass --room MODULE:ROOM" in grouped.stderr
    assert states(tmp_path) == before

    agreed = run("dead", "replay", *ORDERS, "--source", "web", "--limit", "1", stdin="y\n")
    assert agreed.stdout.endswith("replayed 1\n")
    assert states(tmp_path) == {**before, "web/1": State.WAITING}


def test_replay_takes_names_and_a_room(run: Run, tmp_path: Path) -> None:
    make_dead_letters(tmp_path)
    # They died when the box had no order yet.
    write_module(tmp_path, MODULE.replace('order="fifo"', 'order="fifo", change_order=True'))
    named = run("dead", "replay", "2", "3", *ORDERS)
    assert (named.returncode, named.stdout) == (0, "replayed 1; 1 were not dead and left alone\n")
    rest = run("dead", "replay", "--room", "shop:room", "--inbox", "orders", "--all", "--yes", "--json")
    assert ids(rest) == ["web/1", "phone/1"]
    assert set(states(tmp_path).values()) == {State.WAITING}
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:  # the room says that its groups are in order
        lines = db.execute("SELECT group_id FROM postroom_queue WHERE group_id IS NOT NULL").fetchall()
        assert lines == [("ann",)]


def test_purge_deletes_old_dead_letters_after_confirmation(run: Run, run_each: RunEach, tmp_path: Path) -> None:
    make_dead_letters(tmp_path)
    young, refused = run_each(
        ("dead", "purge", *OUTBOX, "--older-than", "1h", "--yes", "--json"),
        ("dead", "purge", *OUTBOX, "--older-than", "0s"),  # not confirmed
    )
    assert output_of(young) == {"box": "outbox:outbox", "deleted": 0}
    assert refused.returncode == 1
    assert "delete dead letters of outbox 'outbox'" in refused.stderr
    deleted = run("dead", "purge", *OUTBOX, "--older-than", "0s", stdin="y\n")
    assert (deleted.returncode, deleted.stdout.strip()) == (0, "deleted 2")
    with open_shop(tmp_path) as room:
        assert room.outbox().counts()[State.DEAD] == 0


def test_no_message_can_add_a_line_to_a_list(run_each: RunEach, tmp_path: Path) -> None:
    with open_shop(tmp_path) as room:
        orders = room.inbox("orders", order="fifo", on_dead="block")
        orders.enqueue("t\nt", {}, source="web\nweb", message_id="1\n2", group="ann\nbob")
        orders.mark_dead("1\n2", "web\nweb", error="no\nstock")
    listing, groups = run_each(("dead", "list", *ORDERS), ("groups", "list", *ORDERS))
    assert listing.stdout.startswith("1\\n2  from web\\nweb, topic t\\nt, group ann\\nbob\n    died ")
    assert groups.stdout.startswith("group ann\\nbob: 0 messages waiting behind\n  1\\n2  from web\\nweb")
    assert (listing.stdout.count("\n"), groups.stdout.count("\n")) == (2, 3)
