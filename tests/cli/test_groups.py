"""`postroom groups`: what holds up groups, on SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom import OwnerToken, State
from postroom.sync import Postroom
from tests.cli.conftest import Run, RunEach, output_of
from tests.cli.shop import ESCAPE, SECRET, write_module
from tests.postgres import create_database

MODULE = """\
from postroom import Postroom

room = Postroom("{url}")
orders = room.inbox("orders", order="fifo", on_dead="block")
"""
ROOM = ("--room", "shop:room", "--inbox", "orders")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}" if request.param == "sqlite" else create_database()
    write_module(tmp_path, MODULE.format(url=url))
    with Postroom(url, deploy_schema=True) as room:
        block(room)
    return url


def orders_of(room: Postroom) -> Any:
    return room.inbox("orders", order="fifo", on_dead="block")


def block(room: Postroom) -> None:
    """Two dead letters hold up the group ann, with two behind; one holds up bob, with none. carl goes on."""
    orders, owner = orders_of(room), OwnerToken.new()
    for message_id, group in (("1", "ann"), ("2", "bob"), ("3", "ann"), ("4", "ann"), ("5", "ann"), ("6", "carl")):
        orders.enqueue("order.placed", {"card": SECRET}, source="web", message_id=message_id, group=group)
    for message_id in "123":
        orders.mark_dead(message_id, "web", error=f"no stock {ESCAPE}")
    orders.ack(owner, orders.claim(owner))


def states(url: str) -> dict[str, State]:
    with Postroom(url) as room:
        return {message.message_id: message.state for message in orders_of(room).find()}


def claimable(url: str) -> list[str]:
    with Postroom(url) as room:
        return [message.message_id for message in orders_of(room).claim(OwnerToken.new())]


def keys(ran: Any) -> list[str]:
    return [message["message_id"] for message in output_of(ran)["messages"]]


def test_list_says_what_blocks_and_what_waits_behind(run_each: RunEach, url: str) -> None:
    text, json, by_url, one = run_each(
        ("groups", "list", *ROOM),
        ("groups", "list", *ROOM, "--json"),
        ("groups", "list", "--url", url, "--inbox", "orders", "--json"),
        ("groups", "list", *ROOM, "--limit", "1"),
    )
    assert text.stdout.startswith(
        "group ann: 2 messages waiting behind\n  1  from web, topic order.placed, group ann\n"
    )
    assert "group bob: 0 messages waiting behind\n  2  from web" in text.stdout
    assert "no stock \\x1b[31mred" in text.stdout
    assert "carl" not in text.stdout
    found = output_of(json)
    assert (found["box"], found["blocked"]) == ("inbox:orders", 2)
    assert [(row["group"], row["waiting"]) for row in found["groups"]] == [("ann", 2), ("bob", 0)]
    assert [letter["message_id"] for letter in found["groups"][0]["dead"]] == ["1", "3"]
    assert SECRET not in json.stdout
    assert output_of(by_url) == found
    assert "bob" not in one.stdout
    assert one.stdout.endswith("and 1 more: raise --limit\n")


def test_skip_lets_the_group_go_on(run_each: RunEach, url: str) -> None:
    dry, refused, no_room, skipped, open_, none = run_each(
        ("groups", "skip", "ann", *ROOM, "--dry-run"),
        ("groups", "skip", "--all", *ROOM),  # not confirmed
        ("groups", "skip", "ann", "--url", url, "--inbox", "orders"),
        ("groups", "skip", "ann", *ROOM, "--json"),
        ("groups", "skip", "carl", *ROOM),
        ("groups", "skip", "unknown", *ROOM, "--json"),
    )
    assert dry.stdout.endswith("would skip 2 dead letters of 1 group\n")
    assert refused.returncode == 1
    assert "skip 3 dead letters of 2 groups of inbox 'orders'? [y/N]" in refused.stderr
    assert (no_room.returncode, "pass --room MODULE:ROOM" in no_room.stderr) == (1, True)
    assert keys(skipped) == ["1", "3"]
    assert open_.stdout == "skipped 0 dead letters of 0 groups; 1 group not blocked and left alone\n"
    assert keys(none) == []
    assert [states(url)[number] for number in "123"] == [State.DEAD] * 3
    assert claimable(url) == ["4", "5"]


def test_replay_tries_what_blocks_again(run: Run, run_each: RunEach, url: str) -> None:
    [dry] = run_each(("groups", "replay", "--all", *ROOM, "--dry-run", "--json"))
    assert keys(dry) == ["1", "3", "2"]
    assert states(url)["1"] is State.DEAD
    agreed = run("groups", "replay", "--all", *ROOM, stdin="y\n")
    assert agreed.stdout.endswith("replayed 3 dead letters of 2 groups\n")
    assert [number for number in claimable(url) if number != "2"] == ["1", "3", "4", "5"]
    assert run("groups", "list", *ROOM).stdout == "no group is blocked\n"
