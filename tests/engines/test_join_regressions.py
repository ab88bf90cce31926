"""Joins: an ack by an old snapshot, and a continuation that would wait for itself."""

from __future__ import annotations

import psycopg
import pytest

from postroom import ArgumentValueError, OwnerToken
from postroom.sync import Outbox, Postroom
from tests.postgres import create_database

WORKER = OwnerToken.new()


@pytest.fixture
def outbox_url() -> str:
    url = create_database()
    Postroom(url).migrate()
    return url


def test_an_ack_by_an_old_snapshot_wakes_all_joins_or_fails(outbox_url: str) -> None:
    """The transaction does not see the second join. It must not end the step without waking what follows that join."""
    outbox = Postroom(outbox_url).outbox()
    first, second = outbox.start_join("acme", 1), outbox.start_join("acme", 1)
    receipt = outbox.enqueue("step", {}, join=first)
    outbox.enqueue_join_wait(first, on_complete_topic="first")
    [step] = outbox.claim(WORKER, 60)
    assert outbox.claim(WORKER, 60) == []  # the step is watched now
    with psycopg.connect(outbox_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM postroom_message LIMIT 1")  # takes the snapshot
        outbox.attach_message_to_join(second, receipt)
        outbox.enqueue_join_wait(second, on_complete_topic="second")
        assert outbox.claim(WORKER, 60) == []
        with pytest.raises(psycopg.errors.SerializationFailure):
            outbox.ack(WORKER, [step], tx=connection)
        connection.rollback()
    assert outbox.ack(WORKER, [step]) == [True]
    assert {message.topic for message in outbox.claim(WORKER, 60)} == {"first", "second"}


@pytest.mark.parametrize("store", ["memory", "postgres"])
def test_a_continuation_is_no_step_of_its_join(store: str, request: pytest.FixtureRequest) -> None:
    url = "memory://" if store == "memory" else request.getfixturevalue("outbox_url")
    outbox: Outbox = Postroom(url).outbox()
    join = outbox.start_join("acme", 2)
    receipt = outbox.enqueue_join_wait(join, on_complete_topic="done")
    for message in (receipt, receipt.id, receipt.message_id):
        with pytest.raises(ArgumentValueError, match="would wait for itself"):
            outbox.attach_message_to_join(join, message)
    assert outbox.join_steps(join) == []
