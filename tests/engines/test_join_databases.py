"""A join is in one database: its steps and its transactions are of the same database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import JoinNotFound, MessageNotFound, NewMessage, OwnerToken, TransactionRefused
from postroom.sync import Postroom
from tests.postgres import create_database

WORKER = OwnerToken.new()
STORES = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
MakeUrl = Callable[[], str]


@pytest.fixture
def make_url(store: str, tmp_path: Path) -> MakeUrl:
    """Returns a function that makes a new, empty database and returns its URL."""
    numbers = iter(range(10))
    if store == "postgres":
        return create_database
    return lambda: "memory://" if store == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db"


def open_room(url: str) -> Postroom:
    room = Postroom(url)
    if url != "memory://":
        room.migrate()
    return room


@STORES
@pytest.mark.req("OBX-SCP-05", "C-37")
def test_a_join_of_another_database(make_url: MakeUrl) -> None:
    here, there = open_room(make_url()).outbox(), open_room(make_url()).outbox()
    join = there.start_join("acme", 1)
    mine = here.enqueue("step", {})
    verbs: list[Callable[[], Any]] = [
        lambda: here.attach_message_to_join(join, mine),
        lambda: here.report_step_completed(join, mine),
        lambda: here.enqueue("step", {}, join=join),
        lambda: here.enqueue_many([NewMessage("step", {})], join=join),
        lambda: here.enqueue_join_wait(join, on_complete_topic="done"),
        lambda: here.seal_join(join),
        lambda: here.cancel_join(join),
        lambda: here.get_join(join),
        lambda: here.join_steps(join),
    ]
    for verb in verbs:
        with pytest.raises(JoinNotFound):
            verb()
    assert [message.id for message in here.find()] == [mine.id]
    assert (here.joins(), there.join_steps(join)) == ([], [])


@STORES
@pytest.mark.req("OBX-SCP-05", "C-37")
def test_a_step_of_another_database(make_url: MakeUrl) -> None:
    """The message is found neither by its key nor by its id, which no message has here."""
    here, there = open_room(make_url()).outbox(), open_room(make_url()).outbox()
    join = here.start_join("acme", 1)
    there.enqueue_many([NewMessage("step", {}) for _ in range(5)])
    theirs = there.enqueue("step", {}, message_id="theirs")
    here.enqueue_join_wait(join, on_complete_topic="done")
    for message in (theirs, theirs.id, "theirs"):
        with pytest.raises(MessageNotFound):
            here.attach_message_to_join(join, message)
        with pytest.raises(MessageNotFound):
            here.report_step_completed(join, message)
    there.ack(WORKER, there.claim(WORKER, 60))
    assert here.claim(WORKER, 60) == []
    assert (here.get_join(join).attached_steps, here.join_steps(join)) == (0, [])


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.req("OBX-SCP-05", "C-37")
def test_a_transaction_of_another_database(make_url: MakeUrl, store: str) -> None:
    here, elsewhere = make_url(), make_url()
    outbox = open_room(here).outbox()
    open_room(elsewhere)
    mine = outbox.enqueue("step", {})
    join = outbox.start_join("acme", 1)
    connection: Any = psycopg.connect(elsewhere) if store == "postgres" else sqlite3.connect(elsewhere[10:])
    with closing(connection):
        connection.execute("BEGIN" if store == "sqlite" else "SELECT 1")
        for verb in (
            lambda: outbox.start_join("acme", 1, tx=connection),
            lambda: outbox.attach_message_to_join(join, mine, tx=connection),
            lambda: outbox.enqueue("step", {}, join=join, tx=connection),
            lambda: outbox.enqueue_join_wait(join, tx=connection),
        ):
            with pytest.raises(TransactionRefused, match="database"):
                verb()
    assert outbox.join_steps(join) == []
