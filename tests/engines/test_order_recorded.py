"""A box that is opened in another order than the one it has, in a room of another process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import Message, OrderMismatch, OwnerToken, Postroom
from postroom.sync import Postroom as SyncPostroom
from tests.postgres import clean_database
from tests.redis import new_prefix, server

OWNER = OwnerToken.new()
HAS_FIFO = r"inbox 'b' has order=\"fifo\" .* inbox\('b', order=\"fifo\"\).*pass change_order=True once"
Open = Callable[[], SyncPostroom]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where rooms of several processes are."""
    if request.param == "redis":
        return {"url": server(), "prefix": new_prefix()}
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else clean_database()
    return {"url": url, "deploy_schema": True}


@pytest.fixture
def open_room(place: dict[str, Any]) -> Iterator[Open]:
    rooms: list[SyncPostroom] = []

    def open_room() -> SyncPostroom:
        rooms.append(SyncPostroom(**place))
        return rooms[-1]

    yield open_room
    for room in rooms:
        room.close()


def put(box: Any, *names: str, **options: Any) -> None:
    for name in names:
        box.enqueue("t", {}, source="s", message_id=name, group="g", **options)


def claimed(box: Any) -> list[str]:
    return [message.message_id for message in box.claim(OWNER)]


def test_a_fifo_box_is_not_opened_without_its_order(open_room: Open) -> None:
    put(open_room().inbox("b", order="fifo"), "1", "2")
    box = open_room().inbox("b")
    for verb in (lambda: put(box, "3"), lambda: box.claim(OWNER), box.replay, lambda: put(box, "4")):
        with pytest.raises(
            OrderMismatch, match=r"inbox 'b' has order=\"fifo\" .* inbox\('b', order=\"fifo\"\).*change_order"
        ):
            verb()
    assert [message.message_id for message in box.find()] == ["1", "2"], "to look is fine"


def test_a_box_without_an_order_is_not_opened_as_fifo(open_room: Open) -> None:
    put(open_room().outbox("b"), "1")
    with pytest.raises(OrderMismatch, match=r"outbox 'b' has order=\"none\" .* opens it with order=\"fifo\""):
        put(open_room().outbox("b", order="fifo"), "2")


def test_the_same_order_and_other_boxes_are_fine(open_room: Open) -> None:
    put(open_room().inbox("b", order="fifo"), "1")
    other = open_room()
    put(other.inbox("b", order="fifo", on_dead="block"), "2")
    put(other.inbox("c"), "3")
    put(other.outbox("b"), "4")
    assert claimed(other.inbox("b")) == ["1", "2"]


def test_a_claim_of_an_empty_box_records_its_order(open_room: Open) -> None:
    assert claimed(open_room().inbox("b", order="fifo")) == []
    with pytest.raises(OrderMismatch):
        put(open_room().inbox("b"), "1")


def test_an_order_is_changed_once(open_room: Open) -> None:
    put(open_room().inbox("b"), "1")
    put(open_room().inbox("b", order="fifo", change_order=True), "2")
    put(open_room().inbox("b", order="fifo"), "3")
    with pytest.raises(OrderMismatch):
        put(open_room().inbox("b"), "4")


def test_a_process_that_runs_keeps_working_while_the_order_changes(open_room: Open) -> None:
    """A deployment changes one process after the other. What is left of the old ones ends soon."""
    old = open_room().inbox("b")
    put(old, "1")
    new = open_room().inbox("b", order="fifo", change_order=True)
    put(new, "2", "3")
    put(old, "4")
    handled = claimed(new)
    assert sorted(handled) == ["1", "2", "3", "4"]
    assert handled.index("2") < handled.index("3")


async def test_a_worker_does_not_start_on_a_box_of_another_order(place: dict[str, Any], open_room: Open) -> None:
    put(open_room().inbox("b", order="fifo"), "1")
    room = Postroom(**place)
    box = room.inbox("b")

    @box.handler("t")
    async def handle(_message: Message[Any]) -> None: ...

    with pytest.raises(OrderMismatch):
        await room.start()
    with pytest.raises(OrderMismatch):
        await box.start()
    assert not room.is_running
    assert not box.is_running
    await room.close()


async def test_a_worker_records_the_order_of_its_box(place: dict[str, Any], open_room: Open) -> None:
    room = Postroom(**place)
    box = room.inbox("b", order="fifo")

    @box.handler("t")
    async def handle(_message: Message[Any]) -> None: ...

    async with room:
        with pytest.raises(OrderMismatch):
            put(open_room().inbox("b"), "1")


def test_several_processes_that_come_first_agree(open_room: Open) -> None:
    put(open_room().inbox("b", order="fifo"), "1")
    boxes = [open_room().inbox("b", order="fifo") for _ in range(3)]
    for number, box in enumerate(boxes, 2):
        put(box, str(number))
    assert claimed(boxes[0]) == ["1", "2", "3", "4"]


def begun(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("BEGIN")
    return connection


class TestInACallersTransaction:
    @pytest.fixture(params=["sqlite", "postgres"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
        url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else clean_database()
        return {"url": url, "deploy_schema": True}

    @pytest.fixture
    def connect(self, place: dict[str, Any], open_room: Open) -> Callable[[], Any]:
        open_room().inbox("other").counts()  # the schema is there
        return (
            (lambda: psycopg.connect(place["url"]))
            if place["url"].startswith("postgresql")
            else (lambda: closing(begun(place["url"].removeprefix("sqlite:///"))))
        )

    def test_a_difference_is_found_before_anything_is_written(self, open_room: Open, connect: Any) -> None:
        put(open_room().inbox("b", order="fifo"), "1")
        box = open_room().inbox("b")
        with connect() as tx:
            with pytest.raises(OrderMismatch):
                put(box, "2", tx=tx)
            tx.commit()
        assert [message.message_id for message in box.find()] == ["1"]

    def test_a_caller_that_came_first_is_refused_later(self, open_room: Open, connect: Any) -> None:
        """It writes before any order is recorded, and would else never know."""
        box = open_room().inbox("b")
        with connect() as tx:
            put(box, "1", tx=tx)
            tx.commit()
        put(open_room().inbox("b", order="fifo"), "2")
        with connect() as tx, pytest.raises(OrderMismatch):
            put(box, "3", tx=tx)

    def test_no_writer_waits_for_a_caller_that_came_first(
        self, place: dict[str, Any], open_room: Open, connect: Any
    ) -> None:
        if place["url"].startswith("sqlite"):
            pytest.skip("SQLite has one writer")
        with connect() as tx:
            put(open_room().inbox("b"), "1", tx=tx)
            put(open_room().inbox("b"), "2")
            tx.commit()

    def test_a_change_commits_with_the_caller(self, open_room: Open, connect: Any) -> None:
        put(open_room().inbox("b"), "1")
        changing = open_room().inbox("b", order="fifo", change_order=True)
        with connect() as tx:
            put(changing, "2", tx=tx)
            tx.rollback()
        put(open_room().inbox("b"), "3")
        with connect() as tx:
            put(changing, "2", tx=tx)
            tx.commit()
        with pytest.raises(OrderMismatch):
            put(open_room().inbox("b"), "4")
