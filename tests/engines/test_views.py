"""The views postroom_inbox and postroom_outbox: every column, in every state, on SQLite and on PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from postroom import OwnerToken
from postroom.sync import Postroom
from postroom.testing import FrozenClock
from tests.postgres import clean_database

WORKER = OwnerToken.new()
SECOND = timedelta(seconds=1)
HASH = b"\x01" * 32
TIMES = ("_utc", "_at", "_until")
UUIDS = ("owner_token", "processed_by")
EARLIER = {
    "next_attempt_at": None,
    "locked_until": None,
    "processed_at": None,
    "processed_by": None,
    "ending": None,
    "owner_token": None,
    "last_error": None,
    "due_time_utc": None,
    "group_id": None,
    "collapse_key": None,
    "correlation_id": None,
}
"""What most rows do not have."""


class Shop:
    """A room, and the rows of its views by message id."""

    def __init__(self, room: Postroom, clock: FrozenClock, url: str) -> None:
        self.room, self.clock, self._url = room, clock, url

    def rows(self, view: str) -> dict[str, dict[str, Any]]:
        return {row["message_id"]: row for row in self.typed(f"SELECT * FROM {view} ORDER BY id")}

    def typed(self, statement: str) -> list[dict[str, Any]]:
        """Returns the rows of a statement, with times and UUIDs as such."""
        return [_typed(row) for row in self._select(statement)]

    def _select(self, statement: str) -> list[dict[str, Any]]:
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute(statement)]
        with psycopg.connect(self._url, row_factory=dict_row) as connection:
            return connection.execute(statement.encode()).fetchall()


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """Times and UUIDs as such: SQLite has no types for them."""
    typed = dict(row)
    for name, value in row.items():
        if isinstance(value, str) and name.endswith(TIMES):
            typed[name] = datetime.fromisoformat(value)
        elif isinstance(value, str) and name in UUIDS:
            typed[name] = UUID(value)
    return typed


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    clock = FrozenClock()
    url = clean_database() if request.param == "postgres" else f"sqlite:///{tmp_path}/shop.db"
    with Postroom(url, clock=clock) as room:
        room.migrate()
        yield Shop(room, clock, url)


@pytest.mark.req("C-30")
def test_every_column_of_the_inbox_in_every_state(shop: Shop) -> None:
    inbox, clock = shop.room.inbox("shop"), shop.clock
    began = clock.now()
    for name in ("handled", "failed", "abandoned", "held"):
        inbox.enqueue(name, f"payload of {name}", source="stripe", message_id=name)
    claimed = {message.message_id: message for message in inbox.claim(WORKER, 45)}
    clock.advance(1)
    inbox.ack(WORKER, [claimed["handled"]])
    inbox.fail(WORKER, [claimed["failed"]], "no such account")
    inbox.abandon(WORKER, [claimed["abandoned"]], last_error="try later", delay=60 * SECOND)
    inbox.enqueue(
        "later",
        "payload of later",
        source="stripe",
        message_id="later",
        due=began + 100 * SECOND,
        hash=HASH,
        group="g",
        collapse_key="k",
        correlation_id="c",
    )
    inbox.already_processed("seen", "paypal")
    later = {"first_seen_utc": began + SECOND, "last_seen_utc": began + SECOND}
    common = {**EARLIER, "inbox_name": "shop", "source": "stripe", "hash": None, "attempt": 0, "deliveries": 1}
    expected: dict[str, dict[str, Any]] = {
        "handled": {"status": "Done", "processed_at": began + SECOND, "processed_by": WORKER, "ending": "handled"},
        "failed": {"status": "Dead", "processed_at": began + SECOND, "last_error": "no such account", "attempt": 0},
        "abandoned": {
            "status": "Processing",
            "attempt": 1,
            "last_error": "try later",
            "next_attempt_at": began + 61 * SECOND,
        },
        "held": {"status": "Processing", "owner_token": WORKER, "locked_until": began + 45 * SECOND},
        "later": {
            "status": "Processing",
            "deliveries": 0,
            "hash": HASH,
            "due_time_utc": began + 100 * SECOND,
            "next_attempt_at": began + 100 * SECOND,
            "group_id": "g",
            "collapse_key": "k",
            "correlation_id": "c",
            **later,
        },
        "seen": {"status": "Seen", "source": "paypal", "deliveries": 0, **later},
    }
    rows = shop.rows("postroom_inbox")
    assert list(rows) == list(expected)
    ids = [row.pop("id") for row in rows.values()]
    assert ids == sorted(set(ids))
    for name, special in expected.items():
        content = {"topic": name, "payload": f"payload of {name}"} if name != "seen" else {"topic": "", "payload": ""}
        times = {"first_seen_utc": began, "last_seen_utc": began}
        assert rows[name] == {**common, "message_id": name, **content, **times, **special}, name


@pytest.mark.req("C-30")
def test_every_column_of_the_outbox_in_every_state(shop: Shop) -> None:
    outbox, clock = shop.room.outbox("mail"), shop.clock
    began = clock.now()
    for name in ("handled", "failed", "abandoned", "held"):
        outbox.enqueue(name, {"to": name}, message_id=name)
    claimed = {message.message_id: message for message in outbox.claim(WORKER, 45)}
    clock.advance(1)
    outbox.ack(WORKER, [claimed["handled"]])
    outbox.fail(WORKER, [claimed["failed"]], "refused")
    outbox.abandon(WORKER, [claimed["abandoned"]], last_error="try later", delay=60 * SECOND)
    outbox.enqueue(
        "later",
        {"to": "later"},
        message_id="later",
        due=began + 100 * SECOND,
        group="g",
        collapse_key="k",
        correlation_id="c",
    )
    common = {**EARLIER, "outbox_name": "mail", "is_processed": False, "retry_count": 0, "deliveries": 1}
    expected: dict[str, dict[str, Any]] = {
        "handled": {
            "status": "Done",
            "is_processed": True,
            "processed_at": began + SECOND,
            "processed_by": WORKER,
            "ending": "handled",
        },
        "failed": {"status": "Failed", "last_error": "refused"},
        "abandoned": {
            "status": "Ready",
            "retry_count": 1,
            "last_error": "try later",
            "next_attempt_at": began + 61 * SECOND,
        },
        "held": {"status": "InProgress", "owner_token": WORKER, "locked_until": began + 45 * SECOND},
        "later": {
            "status": "Ready",
            "deliveries": 0,
            "created_at": began + SECOND,
            "due_time_utc": began + 100 * SECOND,
            "next_attempt_at": began + 100 * SECOND,
            "group_id": "g",
            "collapse_key": "k",
            "correlation_id": "c",
        },
    }
    rows = shop.rows("postroom_outbox")
    assert list(rows) == list(expected)
    ids = [row.pop("id") for row in rows.values()]
    assert ids == sorted(set(ids))
    for name, special in expected.items():
        content = {"message_id": name, "topic": name, "payload": f'{{"to":"{name}"}}', "created_at": began}
        assert rows[name] == {**common, **content, **special}, name


@pytest.mark.req("IBX-050", "IBX-065", "OBX-029", "C-65")
@pytest.mark.parametrize("verb", ["ack", "abandon", "release", "fail", "reap"])
def test_no_owner_and_no_lease_is_left_in_the_tables(shop: Shop, verb: str) -> None:
    """Not only what the verbs return: the columns themselves, as an operator sees them."""
    boxes: tuple[Any, ...] = (shop.room.inbox(), shop.room.outbox())
    for box in boxes:
        box.enqueue("t", {"id": 1}, source="s", message_id="1")
        claimed = box.claim(WORKER, 30)
        if verb == "fail":
            box.fail(WORKER, claimed, "no")
        elif verb == "reap":
            shop.clock.advance(30)
            box.reap()
        else:
            getattr(box, verb)(WORKER, claimed)
    queue = shop._select("SELECT * FROM postroom_queue")
    assert len(queue) == (0 if verb == "ack" else 2)
    for row in queue:
        assert row["owner"] is None
        assert row.get("lease_until") is None  # PostgreSQL has a column for it
    for view in ("postroom_inbox", "postroom_outbox"):
        [row] = shop.rows(view).values()
        assert (row["owner_token"], row["locked_until"]) == (None, None)


def test_a_view_shows_its_own_kind_of_box(shop: Shop) -> None:
    shop.room.inbox("a").enqueue("t", "x", source="s", message_id="in")
    shop.room.outbox("a").enqueue("t", "x", message_id="out")
    assert list(shop.rows("postroom_inbox")) == ["in"]
    assert list(shop.rows("postroom_outbox")) == ["out"]
