"""`postroom cancel`: waiting messages end before they are handled, on SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom import OwnerToken
from postroom.sync import Postroom
from tests.cli.conftest import Run, RunEach, output_of
from tests.cli.shop import SECRET, write_module
from tests.postgres import create_database

MODULE = """\
from postroom import Postroom

room = Postroom("{url}")
room.inbox("orders")
room.inbox("lines", order="fifo")
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Four wait in the inbox `orders`, one is claimed; two wait in a group of the FIFO inbox `lines`."""
    url = f"sqlite:///{tmp_path / 'shop.db'}" if request.param == "sqlite" else create_database()
    write_module(tmp_path, MODULE.format(url=url))
    with Postroom(url, deploy_schema=True) as room:
        orders = room.inbox("orders")
        orders.enqueue("order.placed", {"card": SECRET}, source="web", message_id="claimed", correlation_id="cart-1")
        orders.claim(OwnerToken.new())
        for number, source in (("1", "web"), ("2", "web"), ("3", "web"), ("1", "phone")):
            orders.enqueue(
                "order.placed", {"card": SECRET}, source=source, message_id=number, correlation_id=f"cart-{number}"
            )
        for number in "12":
            room.inbox("lines", order="fifo").enqueue("line", {}, source="web", message_id=number, group="ann")
    return url


def endings(url: str, name: str = "orders") -> dict[str, str]:
    """How messages ended, or their state."""
    with Postroom(url) as room:
        options: Any = {"order": "fifo"} if name == "lines" else {}
        found = room.inbox(name, **options).find()
        return {f"{message.source}/{message.message_id}": str(message.ending or message.state) for message in found}


def keys(ran: Any) -> list[str]:
    return [f"{message['source']}/{message['message_id']}" for message in output_of(ran)["messages"]]


BEFORE = {
    "web/claimed": "claimed",
    "web/1": "waiting",
    "web/2": "waiting",
    "web/3": "waiting",
    "phone/1": "waiting",
}


def test_those_that_fit_are_shown_first_and_it_asks(run: Run, run_each: RunEach, url: str) -> None:
    orders = ("cancel", "--url", url, "--inbox", "orders")
    dry, dry_json, refused = run_each(
        (*orders, "--source", "web", "--dry-run"),
        (*orders, "--correlation-id", "cart-1", "--dry-run", "--json"),
        (*orders, "--topic", "order.placed"),  # not confirmed
    )
    assert dry.stdout.startswith("1  from web, topic order.placed\n    waiting since ")
    assert dry.stdout.endswith("would cancel 3\n")
    assert keys(dry_json) == ["web/1", "phone/1"]  # and not the one that is claimed
    assert SECRET not in dry.stdout + dry_json.stdout
    assert refused.returncode == 1
    assert "cancel 4 waiting messages of inbox 'orders'? [y/N]" in refused.stderr
    assert endings(url) == BEFORE
    agreed = run(*orders, "--correlation-id", "cart-1", stdin="y\n")
    assert agreed.stdout.endswith("cancelled 2\n")
    assert endings(url) == BEFORE | {"web/1": "cancelled", "phone/1": "cancelled"}
    limited, none = run_each(
        (*orders, "--topic", "order.placed", "--limit", "1", "--yes", "--json"), (*orders, "--topic", "other", "--yes")
    )
    assert keys(limited) == ["web/2"]
    assert none.stdout == "cancelled 0\n"


def test_those_that_are_named_are_cancelled_without_a_question(run_each: RunEach, url: str) -> None:
    orders = ("cancel", "--url", url, "--inbox", "orders")
    with Postroom(url) as room:
        number = room.inbox("orders").get("3").id
    both, named, by_id, claimed, dry, unknown = run_each(
        (*orders, "1"),
        (*orders, "1", "2", "--source", "web"),
        (*orders, "--id", str(number), "--id", "999999999", "--json"),
        (*orders, "claimed"),
        (*orders, "claimed", "--dry-run"),
        (*orders, "nothing"),
    )
    assert both.stderr.startswith("postroom: Several sources use this message id")
    assert named.stdout == "cancelled 2\n"
    assert keys(by_id) == ["web/3"]
    assert claimed.stdout == "cancelled 0; 1 were not waiting and left alone\n"
    assert dry.stdout == "would cancel 0\n"
    assert (unknown.returncode, unknown.stderr) == (1, "postroom: there is no message 'nothing' in inbox 'orders'\n")
    assert endings(url) == BEFORE | {"web/1": "cancelled", "web/2": "cancelled", "web/3": "cancelled"}


def test_a_group_goes_on_and_needs_its_room(run_each: RunEach, url: str) -> None:
    by_url, by_room = run_each(
        ("cancel", "1", "--url", url, "--inbox", "lines"),
        ("cancel", "1", "--room", "shop:room", "--inbox", "lines"),
    )
    assert (by_url.returncode, "pass --room MODULE:ROOM" in by_url.stderr) == (1, True)
    assert by_room.stdout == "cancelled 1\n"
    assert endings(url, "lines") == {"web/1": "cancelled", "web/2": "waiting"}
    with Postroom(url) as room:
        assert [message.message_id for message in room.inbox("lines", order="fifo").claim(OwnerToken.new())] == ["2"]
