"""Joins on Redis: circles, and puts with the key of a continuation whose join has ended."""

from __future__ import annotations

import pytest

from postroom import ArgumentValueError, OwnerToken, ReceiptStatus
from postroom.sync import Outbox, Postroom
from tests.redis import new_prefix, open_at, server

WORKER = OwnerToken.new()


@pytest.fixture
def outbox() -> Outbox:
    return Postroom(store=open_at(server(), "sync", prefix=new_prefix())).outbox()


@pytest.mark.req("OBX-090")
@pytest.mark.parametrize("length", [2, 3])
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


@pytest.mark.req("OBX-090")
def test_an_ended_join_closes_no_circle(outbox: Outbox) -> None:
    first, second = outbox.start_join("acme", 1), outbox.start_join("acme", 1)
    waits = [outbox.enqueue_join_wait(join, False, on_complete_topic="done") for join in (first, second)]
    outbox.attach_message_to_join(second, waits[0])
    outbox.cancel_join(second)
    assert outbox.attach_message_to_join(first, waits[1])
    assert [message.id for message in outbox.claim(WORKER, 60)] == [waits[0].id]


@pytest.mark.req("OBX-087")
def test_a_put_does_not_change_what_follows_a_join(outbox: Outbox) -> None:
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
