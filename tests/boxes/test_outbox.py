"""The outbox as its users see it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from postroom import Backoff, Ending, MessageNotFound, OwnerToken, State
from postroom.testing import FrozenClock
from tests.support import settled

OWNER = OwnerToken.new()


@pytest.mark.req("RHI-127", "OBX-001", "OBX-008", "OBX-009", "OBX-010", "OBX-API-01", "OBX-API-17", "OBX-API-25")
async def test_enqueue_names_the_message(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    first = await settled(outbox.enqueue("order.created", {"id": 7}, correlation_id="order-7"))
    second = await settled(outbox.enqueue("order.created", {"id": 8}))
    assert UUID(first.message_id) != UUID(second.message_id)
    assert first.id != second.id
    message = await settled(outbox.get(first.message_id))
    assert (message.topic, message.correlation_id, message.attempt) == ("order.created", "order-7", 0)
    assert (message.first_seen, message.state, message.completed_at) == (clock.now(), State.WAITING, None)


@pytest.mark.req("OBX-021", "OBX-022", "OBX-023", "OBX-026", "OBX-018")
async def test_ack_records_when_and_by_whom(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    receipt = await settled(outbox.enqueue("t", "p"))
    [message] = await settled(outbox.claim(OWNER))
    clock.advance(2)
    assert await settled(outbox.ack(OWNER, [message])) == [True]
    done = await settled(outbox.get(receipt.message_id))
    assert (done.state, done.completed_at, done.completed_by) == (State.DONE, clock.now(), OWNER)
    assert (done.ending, done.claim) == (Ending.HANDLED, None)
    assert await settled(outbox.claim(OWNER)) == []


@pytest.mark.req("OBX-030", "OBX-031", "OBX-034", "OBX-035", "OBX-056", "C-08", "C-30", "C-31")
async def test_abandon_backs_off_by_two_to_the_attempt(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    receipt = await settled(outbox.enqueue("t", "p"))
    for attempt, seconds in enumerate([2, 4, 8, 16, 32, 60, 60], 1):
        [message] = await settled(outbox.claim(OWNER))
        assert await settled(outbox.abandon(OWNER, [message], last_error=f"no {attempt}")) == [True]
        clock.advance(seconds - 0.001)
        assert await settled(outbox.claim(OWNER)) == []
        clock.advance(0.001)
        waiting = await settled(outbox.get(receipt.message_id))
        assert (waiting.attempt, waiting.last_error) == (attempt, f"no {attempt}")


@pytest.mark.req("RHI-006", "OBX-057", "IBX-082", "C-08")
@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [(Backoff.constant(7), 7), (Backoff(lambda attempt: attempt * 3), 3)],
    ids=["constant", "own"],
)
async def test_the_backoff_can_be_replaced(room: Any, clock: FrozenClock, backoff: Backoff, seconds: int) -> None:
    outbox = room.outbox("slow", backoff=backoff)
    await settled(outbox.enqueue("t", "p"))
    await settled(outbox.abandon(OWNER, await settled(outbox.claim(OWNER))))
    clock.advance(seconds - 1)
    assert await settled(outbox.claim(OWNER)) == []
    clock.advance(1)
    assert len(await settled(outbox.claim(OWNER))) == 1


@pytest.mark.req("C-08")
async def test_immediate_backoff(room: Any) -> None:
    outbox = room.outbox("fast", backoff=Backoff.immediate())
    await settled(outbox.enqueue("t", "p"))
    await settled(outbox.abandon(OWNER, await settled(outbox.claim(OWNER))))
    [again] = await settled(outbox.claim(OWNER))
    assert again.attempt == 1


@pytest.mark.req("OBX-036", "OBX-037", "OBX-042", "OBX-019")
async def test_fail_is_final(room: Any) -> None:
    outbox = room.outbox()
    receipt = await settled(outbox.enqueue("t", "p"))
    assert await settled(outbox.fail(OWNER, await settled(outbox.claim(OWNER)), "no such address")) == [True]
    dead = await settled(outbox.get(receipt.message_id))
    assert (dead.state, dead.last_error) == (State.DEAD, "no such address")
    assert await settled(outbox.claim(OWNER)) == []


@pytest.mark.req("C-38")
async def test_done_messages_go_after_their_retention(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    receipt = await settled(outbox.enqueue("t", "p", message_id="m"))
    await settled(outbox.ack(OWNER, await settled(outbox.claim(OWNER))))
    clock.advance(timedelta(days=30) - timedelta(seconds=1))
    await settled(outbox.enqueue("t", "p", message_id="m"))  # a late duplicate does not prolong an outbox message
    assert await settled(outbox.purge()) == 0
    clock.advance(1)
    assert await settled(outbox.purge()) == 1
    with pytest.raises(MessageNotFound):
        await settled(outbox.get(receipt.message_id))


@pytest.mark.req("C-28", "OBX-095")
async def test_renew_keeps_a_lease(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    await settled(outbox.enqueue("t", "p"))
    [message] = await settled(outbox.claim(OWNER, 10))
    clock.advance(8)
    assert await settled(outbox.renew(OWNER, [message], 10)) == [True]
    clock.advance(8)
    assert await settled(outbox.claim(OwnerToken.new())) == []
    assert await settled(outbox.renew(OwnerToken.new(), [message])) == [False]
    clock.advance(3)
    [taken] = await settled(outbox.claim(OWNER))
    assert await settled(outbox.renew(OWNER, [message])) == [False]
    assert await settled(outbox.ack(OWNER, [message])) == [False]
    assert await settled(outbox.ack(OWNER, [taken])) == [True]


@pytest.mark.req("OBX-043", "OBX-044", "OBX-045", "OBX-API-07", "C-57")
async def test_reap_frees_and_buries(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    await settled(outbox.enqueue("t", "p", message_id="held"))
    await settled(outbox.claim(OWNER, 10))
    await settled(outbox.enqueue("t", "p", message_id="late", expires=clock.now() + timedelta(seconds=5)))
    assert await settled(outbox.reap()) == (0, 0)
    clock.advance(11)
    assert await settled(outbox.reap()) == (1, 1)
    assert (await settled(outbox.get("held"))).claim is None
    late = await settled(outbox.get("late"))
    assert (late.state, late.last_error) == (State.DEAD, "expired")
