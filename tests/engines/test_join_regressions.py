"""Joins: an ack by an old snapshot, a continuation that would wait for itself, puts with the key of a continuation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from postroom import ArgumentValueError, OwnerToken, ReceiptStatus, State
from postroom._kernel.joins import WAIT_TOPIC
from postroom.sync import Outbox, Postroom
from tests.postgres import create_database
from tests.redis import new_prefix, open_at, server

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


@pytest.fixture
def outbox(store: str, request: pytest.FixtureRequest) -> Outbox:
    if store == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/joins.db"
        Postroom(url).migrate()
        return Postroom(url).outbox()
    if store == "redis":
        return Postroom(store=open_at(server(), "sync", prefix=new_prefix())).outbox()
    return Postroom("memory://" if store == "memory" else request.getfixturevalue("outbox_url")).outbox()


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_a_continuation_is_no_step_of_its_join(outbox: Outbox) -> None:
    join = outbox.start_join("acme", 2)
    receipt = outbox.enqueue_join_wait(join, on_complete_topic="done")
    for message in (receipt, receipt.id, receipt.message_id):
        with pytest.raises(ArgumentValueError, match="would wait for itself"):
            outbox.attach_message_to_join(join, message)
    assert outbox.join_steps(join) == []


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
@pytest.mark.parametrize("topic", ["order", WAIT_TOPIC])
@pytest.mark.req("OBX-087", "C-36")
def test_a_put_does_not_change_a_continuation(outbox: Outbox, topic: str) -> None:
    join = outbox.start_join("acme", 1)
    outbox.enqueue("step", {}, join=join)
    first = outbox.enqueue_join_wait(join, on_complete_topic="done", correlation_id="mine")
    later = datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any]
    for options in ({}, {"due": later}, {"expires": later}, {"on_conflict": "update"}, {"revive_dead": True}):
        receipt = outbox.enqueue(topic, {"a": 1}, message_id=str(join), headers={"name": "value"}, **options)
        expected = ReceiptStatus.DUPLICATE if topic == WAIT_TOPIC else ReceiptStatus.CONFLICT
        assert (receipt.status, receipt.id, receipt.updated) == (expected, first.id, False)
    continuation = outbox.get(str(join))
    assert (continuation.topic, continuation.headers, continuation.revision) == (WAIT_TOPIC, {}, 0)
    assert (continuation.due, continuation.expires, continuation.correlation_id) == (None, None, "mine")
    outbox.ack(WORKER, outbox.claim(WORKER, 60))
    [message] = outbox.claim(WORKER, 60)
    assert (message.topic, message.payload, message.correlation_id) == ("done", None, "mine")


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
@pytest.mark.req("OBX-087", "C-36")
def test_a_put_does_not_change_what_follows_a_join(outbox: Outbox) -> None:
    """The continuation is an ordinary message now, until it is claimed."""
    join = outbox.start_join("acme", 1)
    outbox.enqueue("step", {}, join=join)
    outbox.enqueue_join_wait(join, on_complete_topic="done", on_complete_payload="mine")
    outbox.ack(WORKER, outbox.claim(WORKER, 60))
    [message] = outbox.claim(WORKER, 60)
    outbox.release(WORKER, [message])
    receipt = outbox.enqueue("other", "yours", message_id=str(join))
    assert (receipt.status, receipt.updated) == (ReceiptStatus.CONFLICT, False)
    [message] = outbox.claim(WORKER, 60)
    assert (message.topic, message.payload) == ("done", "mine")


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_a_put_does_not_change_a_dead_continuation(outbox: Outbox) -> None:
    join = outbox.start_join("acme", 1)
    outbox.enqueue("step", {}, join=join)
    outbox.enqueue_join_wait(join, on_complete_topic="done")
    outbox.fail(WORKER, outbox.claim(WORKER, 60), "broken")
    assert outbox.claim(WORKER, 60) == []
    receipt = outbox.enqueue("order", {}, message_id=str(join))
    assert (receipt.status, receipt.state, receipt.updated) == (ReceiptStatus.CONFLICT, State.DEAD, False)
    outbox.replay(outbox.dead_letters())
    outbox.ack(WORKER, outbox.claim(WORKER, 60))
    assert [message.topic for message in outbox.claim(WORKER, 60)] == ["done"]


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.req("OBX-090", "C-36")
def test_joins_do_not_wait_for_each_other_in_a_circle(outbox: Outbox, length: int) -> None:
    joins = [outbox.start_join("acme", 2) for _ in range(length)]
    waits = [outbox.enqueue_join_wait(join, on_complete_topic="done") for join in joins]
    for outer, inner in zip(joins[1:], waits[:-1], strict=True):
        outbox.attach_message_to_join(outer, inner)
    with pytest.raises(ArgumentValueError, match="would wait for itself"):
        outbox.attach_message_to_join(joins[0], waits[-1])
    with pytest.raises(ArgumentValueError, match="would wait for itself"):
        outbox.enqueue("step", {}, message_id=str(joins[-1]), join=joins[0])
    assert outbox.join_steps(joins[0]) == []
    other = outbox.start_join("acme", 1)
    outbox.enqueue_join_wait(other, on_complete_topic="done")
    assert outbox.attach_message_to_join(other, waits[-1])


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
@pytest.mark.req("OBX-090")
def test_an_ended_join_closes_no_circle(outbox: Outbox) -> None:
    first, second = outbox.start_join("acme", 1), outbox.start_join("acme", 1)
    waits = [outbox.enqueue_join_wait(join, False, on_complete_topic="done") for join in (first, second)]
    outbox.attach_message_to_join(second, waits[0])
    outbox.cancel_join(second)
    assert outbox.attach_message_to_join(first, waits[1])
    assert [message.id for message in outbox.claim(WORKER, 60)] == [waits[0].id]
