"""The verbs as the inbox and outbox documents describe them, on every store: arguments, results, defaults."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, MessageNotFound, OwnerToken, ReceiptStatus, State
from postroom.testing import FrozenClock
from tests.support import settled

WORKER, OTHER = OwnerToken.new(), OwnerToken.new()
SECOND = timedelta(seconds=1)
MANY = 60
"""More than one claim takes by default."""


async def put(box: Any, *names: str, **options: Any) -> None:
    for name in names:
        await settled(box.enqueue("t", {"name": name}, source="s", message_id=name, **options))


# -- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("IBX-API-22", "IBX-API-08", "IBX-API-12")
async def test_get_returns_all_that_was_enqueued_and_what_became_of_it(room: Any, clock: FrozenClock) -> None:
    inbox, began = room.inbox(), clock.now()
    digest = hashlib.sha256(b"x").digest()
    await settled(
        inbox.enqueue(
            "paid",
            "x",
            source="stripe",
            message_id="evt_1",
            hash=digest,
            due=began + SECOND,
            expires=began + timedelta(days=1),
            headers={"h": "1"},
            correlation_id="c",
            group="g",
            collapse_key="k",
            received_at=began - SECOND,
        )
    )
    clock.advance(1)
    await settled(inbox.claim(WORKER, 45))
    clock.advance(1)
    message = await settled(inbox.get("evt_1"))
    content = (message.topic, message.payload, message.source, message.message_id, message.hash)
    assert content == ("paid", "x", "stripe", "evt_1", digest)
    assert (message.due, message.expires, message.received_at) == (
        began + SECOND,
        began + timedelta(days=1),
        began - SECOND,
    )
    assert (message.headers, message.correlation_id, message.group, message.collapse_key) == ({"h": "1"}, "c", "g", "k")
    assert (message.first_seen, message.last_seen) == (began, began)
    assert (message.state, message.attempt, message.deliveries, message.last_error) == (State.CLAIMED, 0, 1, None)
    assert (message.claim.owner, message.claim.until) == (WORKER, began + 46 * SECOND)
    assert (message.completed_at, message.completed_by, message.ending) == (None, None, None)
    with pytest.raises(MessageNotFound, match="evt_2"):
        await settled(inbox.get("evt_2"))


@pytest.mark.req("IBX-API-22")
@pytest.mark.parametrize(("message_id", "error"), [(None, ArgumentTypeError), ("", ArgumentValueError)])
async def test_get_needs_an_id(room: Any, message_id: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="message_id"):
        await settled(room.inbox().get(message_id))


@pytest.mark.req("OBX-API-17", "OBX-SCP-10")
async def test_an_outgoing_message_says_all_of_itself(room: Any, clock: FrozenClock) -> None:
    outbox, began = room.outbox(), clock.now()
    receipt = await settled(outbox.enqueue("mail", {"to": "a@b"}, correlation_id="order-7", due=began + SECOND))
    await settled(outbox.enqueue("mail", {"to": "c@d"}))
    new = await settled(outbox.get(receipt.message_id))
    assert (new.id, new.message_id, new.topic, new.payload) == (receipt.id, receipt.message_id, "mail", {"to": "a@b"})
    assert (new.correlation_id, new.due, new.first_seen) == ("order-7", began + SECOND, began)
    assert (new.state, new.attempt, new.last_error) == (State.WAITING, 0, None)
    assert (new.completed_at, new.completed_by) == (None, None)
    clock.advance(1)
    [message, *_] = [m for m in await settled(outbox.claim(WORKER)) if m.id == receipt.id]
    await settled(outbox.abandon(WORKER, [message], last_error="busy", delay=SECOND))
    tried = await settled(outbox.get(receipt.message_id))
    assert (tried.attempt, tried.last_error, tried.state) == (1, "busy", State.WAITING)
    clock.advance(1)
    await settled(outbox.ack(WORKER, await settled(outbox.claim(WORKER))))
    done = await settled(outbox.get(receipt.message_id))
    assert (done.state, done.completed_at, done.completed_by) == (State.DONE, clock.now(), WORKER)
    assert (done.attempt, done.last_error, done.correlation_id) == (1, "busy", "order-7")
    with pytest.raises(AttributeError):
        done.attempt = 0
    assert [m.id for m in await settled(outbox.find(correlation_id="order-7"))] == [receipt.id]


# -- enqueue and check -----------------------------------------------------------------------------------------------


@pytest.mark.req("IBX-API-04", "IBX-CFG-10", "IBX-OQ-06")
@pytest.mark.parametrize("size", [0, 1, 20, 32, 64, 1_000_000])
async def test_a_hash_may_have_any_length(room: Any, size: int) -> None:
    inbox, digest = room.inbox(), b"\x01" * size
    await settled(inbox.enqueue("t", "x", source="s", message_id="1", hash=digest, hash_algorithm="mine"))
    assert (await settled(inbox.get("1"))).hash == digest
    again = await settled(inbox.enqueue("t", "x", source="s", message_id="1", hash=digest, hash_algorithm="mine"))
    assert again.status is ReceiptStatus.DUPLICATE
    other = await settled(inbox.enqueue("t", "x", source="s", message_id="1", hash=b"no", hash_algorithm="mine"))
    assert other.status is ReceiptStatus.CONFLICT


@pytest.mark.req("IBX-API-04", "IBX-API-12")
async def test_what_is_left_out_counts_as_none(room: Any) -> None:
    inbox = room.inbox()
    assert not await settled(inbox.already_processed("1", "s"))
    await settled(inbox.enqueue("t", "x", source="s", message_id="1"))
    message = await settled(inbox.get("1"))
    assert (message.hash, message.due, message.expires, message.group) == (None, None, None, None)


@pytest.mark.req("IBX-SCP-10")
async def test_a_duplicate_is_known_until_the_key_is_purged(room: Any, clock: FrozenClock) -> None:
    inbox = room.inbox()
    await put(inbox, "1")
    await settled(inbox.ack(WORKER, await settled(inbox.claim(WORKER))))
    clock.advance(timedelta(days=365))
    assert (await settled(inbox.enqueue("t", "x", source="s", message_id="1"))).status is ReceiptStatus.DONE
    clock.advance(timedelta(days=31))
    assert await settled(inbox.purge()) == 1
    assert (await settled(inbox.enqueue("t", "x", source="s", message_id="1"))).status is ReceiptStatus.NEW


# -- marks -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("IBX-API-05")
async def test_mark_processing_makes_a_seen_key_claimable(room: Any) -> None:
    inbox = room.inbox()
    await settled(inbox.already_processed("1", "s"))
    assert await settled(inbox.claim(WORKER)) == []
    assert await settled(inbox.mark_processing("1", "s"))
    assert [message.message_id for message in await settled(inbox.claim(WORKER))] == ["1"]


@pytest.mark.req("IBX-API-06")
async def test_mark_processed_makes_a_key_done(room: Any, clock: FrozenClock) -> None:
    inbox = room.inbox()
    await put(inbox, "1")
    assert await settled(inbox.mark_processed("1", "s"))
    message = await settled(inbox.get("1"))
    assert (message.state, message.completed_at) == (State.DONE, clock.now())
    assert await settled(inbox.already_processed("1", "s"))
    assert await settled(inbox.claim(WORKER)) == []


@pytest.mark.req("IBX-API-07")
async def test_mark_dead_needs_no_owner(room: Any) -> None:
    inbox = room.inbox()
    await put(inbox, "1")
    [claimed] = await settled(inbox.claim(WORKER))
    assert await settled(inbox.mark_dead("1", "s", error="by hand"))
    message = await settled(inbox.get("1"))
    assert (message.state, message.last_error, message.claim) == (State.DEAD, "by hand", None)
    assert await settled(inbox.ack(WORKER, [claimed])) == [False]


# -- claim and settle ------------------------------------------------------------------------------------------------


@pytest.mark.req("IBX-CFG-06", "IBX-CFG-07", "OBX-CFG-06", "OBX-CFG-07", "OBX-API-03", "OBX-API-13")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_a_claim_takes_an_owner_a_lease_and_a_size_and_returns_whole_messages(
    room: Any, clock: FrozenClock, kind: str
) -> None:
    box = getattr(room, kind)()
    await put(box, *map(str, range(MANY)))
    usual = await settled(box.claim(WORKER))
    assert len(usual) == 50
    assert {message.claim.until for message in usual} == {clock.now() + 30 * SECOND}
    assert usual[0].payload == {"name": "0"}
    [chosen] = await settled(box.claim(OTHER, 45, 1))
    assert (chosen.claim.owner, chosen.claim.until) == (OTHER, clock.now() + 45 * SECOND)
    assert len(await settled(box.claim(owner=OTHER, lease_seconds=45, batch_size=4))) == 4


@pytest.mark.req("IBX-API-13")
@pytest.mark.parametrize(
    ("owner", "error"), [(OwnerToken(int=0), ArgumentValueError), (None, ArgumentTypeError), ("", ArgumentTypeError)]
)
async def test_a_claim_needs_an_owner(room: Any, owner: Any, error: type[Exception]) -> None:
    await put(room.inbox(), "1")
    with pytest.raises(error, match="owner"):
        await settled(room.inbox().claim(owner))
    assert (await settled(room.inbox().counts()))[State.CLAIMED] == 0


@pytest.mark.req("IBX-API-13", "IBX-SCP-12")
async def test_one_owner_token_serves_every_claim_of_a_worker(room: Any) -> None:
    inbox = room.inbox()
    await put(inbox, "1", "2")
    claimed = [*await settled(inbox.claim(WORKER, 30, 1)), *await settled(inbox.claim(WORKER, 30, 1))]
    assert await settled(inbox.ack(OTHER, claimed)) == [False, False]
    assert await settled(inbox.abandon(OTHER, claimed)) == [False, False]
    assert await settled(inbox.fail(OTHER, claimed, "no")) == [False, False]
    assert await settled(inbox.ack(WORKER, claimed)) == [True, True]


@pytest.mark.req("OBX-API-04", "OBX-API-14")
async def test_ack_takes_an_owner_and_messages(room: Any) -> None:
    outbox = room.outbox()
    await put(outbox, "1", "2", "3")
    first, second, third = await settled(outbox.claim(WORKER))
    assert await settled(outbox.ack(WORKER, [first.message_id, second])) == [True, True]
    assert await settled(outbox.ack(WORKER, [third])) == [True]
    assert (await settled(outbox.counts()))[State.DONE] == 3


@pytest.mark.req("OBX-API-05", "OBX-API-15", "IBX-SCP-11")
async def test_abandon_needs_neither_an_error_nor_a_delay_and_takes_both(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    await put(outbox, "1", "2")
    one, two = await settled(outbox.claim(WORKER))
    assert await settled(outbox.abandon(WORKER, [one])) == [True]
    assert await settled(outbox.abandon(WORKER, [two], last_error="busy", delay=10 * SECOND)) == [True]
    assert (await settled(outbox.get("1"))).last_error is None
    assert (await settled(outbox.get("2"))).last_error == "busy"
    clock.advance(9)
    assert [message.message_id for message in await settled(outbox.claim(WORKER))] == ["1"]
    clock.advance(1)
    assert [message.message_id for message in await settled(outbox.claim(WORKER))] == ["2"]


@pytest.mark.req("OBX-API-06", "OBX-API-16", "OBX-OQ-04")
async def test_fail_of_an_outbox_needs_no_error_and_takes_one(room: Any) -> None:
    outbox = room.outbox()
    await put(outbox, "1", "2")
    one, two = await settled(outbox.claim(WORKER))
    assert await settled(outbox.fail(WORKER, [one])) == [True]
    assert await settled(outbox.fail(WORKER, [two], "no such address")) == [True]
    assert [(letter.message_id, letter.last_error or "") for letter in await settled(outbox.dead_letters())] == [
        ("1", ""),
        ("2", "no such address"),
    ]
    assert await settled(outbox.claim(WORKER)) == []


@pytest.mark.req("IBX-OQ-05", "OBX-OQ-06")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_a_message_that_expires_is_failed(room: Any, clock: FrozenClock, kind: str) -> None:
    box = getattr(room, kind)()
    await put(box, "1", expires=clock.now() + 5 * SECOND)
    clock.advance(5)
    assert await settled(box.claim(WORKER)) == []
    [letter] = await settled(box.dead_letters())
    assert (letter.state, letter.last_error) == (State.DEAD, "expired")


# -- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.req(
    "IBX-CFG-05", "IBX-CFG-06", "IBX-CFG-07", "IBX-CFG-08", "IBX-CFG-09", "OBX-CFG-05", "OBX-CFG-06", "OBX-CFG-07"
)  # fmt: skip
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_the_defaults_of_a_box(room: Any, kind: str) -> None:
    box = getattr(room, kind)().box
    assert box.work.idle[0] == timedelta(seconds=0.5)
    assert box.work.batch_size == 50
    assert box.work.lease == timedelta(seconds=30)
    assert box.delivery.max_attempts == 10
    assert box.retention.done_age == timedelta(days=30)


@pytest.mark.req("IBX-CFG-09")
async def test_done_messages_are_kept_for_thirty_days(room: Any, clock: FrozenClock) -> None:
    inbox = room.inbox()
    await put(inbox, "1")
    await settled(inbox.ack(WORKER, await settled(inbox.claim(WORKER))))
    clock.advance(timedelta(days=30) - SECOND)
    assert await settled(inbox.purge()) == 0
    clock.advance(1)
    assert await settled(inbox.purge()) == 1
