"""The inbox as its users see it."""

from __future__ import annotations

import hashlib
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroom import (
    AmbiguousMessageId,
    Key,
    Message,
    MessageNotFound,
    NewMessage,
    OwnerToken,
    ReceiptStatus,
    State,
)
from postroom.testing import FrozenClock
from tests.support import settled

OWNER = OwnerToken.new()


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.mark.req("IBX-001", "IBX-003", "IBX-004", "IBX-005", "C-19", "C-20")
async def test_check_then_enqueue_then_handle(room: Any, clock: FrozenClock) -> None:
    """The webhook's way: check, enqueue, handle; a redelivery is recognised at each step."""
    inbox = room.inbox()
    assert not await settled(inbox.already_processed("evt_1", "stripe"))
    assert (await settled(inbox.get("evt_1"))).state is State.SEEN
    assert await settled(inbox.claim(OWNER)) == []
    receipt = await settled(inbox.enqueue("paid", {"amount": 3}, source="stripe", message_id="evt_1"))
    assert receipt.status is ReceiptStatus.NEW
    clock.advance(1)
    assert not await settled(inbox.already_processed("evt_1", "stripe"))
    assert (await settled(inbox.get("evt_1"))).last_seen == clock.now()
    [message] = await settled(inbox.claim(OWNER))
    assert message.payload == {"amount": 3}
    await settled(inbox.ack(OWNER, [message]))
    assert await settled(inbox.already_processed("evt_1", "stripe"))
    assert not await settled(inbox.already_processed("evt_1", "paypal"))
    again = await settled(inbox.enqueue("paid", {"amount": 4}, source="stripe", message_id="evt_1"))
    assert again.status is ReceiptStatus.DONE
    assert await settled(inbox.claim(OWNER)) == []


@pytest.mark.req("C-19")
async def test_is_processed_only_reads(room: Any) -> None:
    inbox = room.inbox()
    assert not await settled(inbox.is_processed("m", "s"))
    with pytest.raises(MessageNotFound):
        await settled(inbox.get("m"))
    await settled(inbox.mark_processed("m", "s"))
    assert await settled(inbox.is_processed("m", "s"))


@pytest.mark.req("IBX-007", "IBX-008", "C-23", "IBX-107", "IBX-API-38")
async def test_another_hash_is_logged_and_the_call_still_returns(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    inbox = room.inbox()
    assert not await settled(inbox.already_processed("m", "s", digest("a")))
    with caplog.at_level(logging.DEBUG, "postroom"):
        assert not await settled(inbox.already_processed("m", "s", digest("a")))
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert "checked" in caplog.text
        assert not await settled(inbox.already_processed("m", "s", digest("b")))
    assert "content differs from what this key had before; the earlier hash was kept: store=" in caplog.text


@pytest.mark.req("C-23")
async def test_hashes_of_other_algorithms_are_not_compared(room: Any) -> None:
    inbox = room.inbox()
    await settled(inbox.enqueue("t", "a", source="s", message_id="m", hash=b"1"))
    receipt = await settled(inbox.enqueue("t", "a", source="s", message_id="m", hash=b"2", hash_algorithm="blake2b"))
    assert receipt.status is ReceiptStatus.DUPLICATE


@pytest.mark.req("C-23")
async def test_on_conflict(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    inbox = room.inbox()

    async def deliver(payload: str, **options: Any) -> Any:
        return await settled(inbox.enqueue("t", payload, source="s", message_id="m", hash=digest(payload), **options))

    await deliver("first")
    kept = await deliver("second", on_conflict="keep")
    assert (kept.status, (await settled(inbox.get("m"))).payload) == (ReceiptStatus.CONFLICT, "first")
    rejected = await deliver("third", on_conflict="reject")
    assert (rejected.status, (await settled(inbox.get("m"))).payload) == (ReceiptStatus.REJECTED, "first")
    updated = await deliver("fourth")
    assert (updated.status, (await settled(inbox.get("m"))).payload) == (ReceiptStatus.CONFLICT, "fourth")
    await settled(inbox.claim(OWNER))
    assert (await deliver("fifth")).replaced_under_lease
    await settled(inbox.mark_processed("m", "s"))
    assert (await deliver("sixth")).status is ReceiptStatus.CONFLICT
    fates = [record.getMessage().partition(": store=")[0].partition("; ")[2] for record in caplog.records]
    assert fates == [
        "the earlier content was kept",
        "this content was rejected",
        "the earlier content was replaced",
        "the earlier content was replaced while it was being handled",
        "the earlier content was kept",
    ]
    assert "fourth" not in caplog.text


@pytest.mark.req("C-21")
async def test_a_dead_message_is_not_resurrected_by_its_sender(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    inbox = room.inbox()
    await settled(inbox.enqueue("t", "bad", source="s", message_id="m"))
    await settled(inbox.mark_dead("m", "s", error="poison"))
    receipt = await settled(inbox.enqueue("t", "better", source="s", message_id="m"))
    assert (receipt.status, receipt.state) == (ReceiptStatus.DEAD, State.DEAD)
    assert "replay" in caplog.text
    [letter] = await settled(inbox.dead_letters())
    assert (letter.payload, letter.last_error) == ("better", "poison")
    revived = await settled(inbox.enqueue("t", "good", source="s", message_id="m", revive_dead=True))
    assert (revived.status, revived.state) == (ReceiptStatus.REVIVED, State.WAITING)
    [message] = await settled(inbox.claim(OWNER))
    assert (message.payload, message.attempt) == ("good", 0)


@pytest.mark.req("C-22")
async def test_content_that_changes_under_a_lease(room: Any, caplog: pytest.LogCaptureFixture) -> None:
    inbox = room.inbox()
    await settled(inbox.enqueue("t", "old", source="s", message_id="m"))
    [message] = await settled(inbox.claim(OWNER))
    receipt = await settled(inbox.enqueue("t", "new", source="s", message_id="m"))
    assert receipt.replaced_under_lease
    assert "while it was being handled" in caplog.text
    stored = await settled(inbox.get("m"))
    assert (stored.revision, stored.claim) == (1, message.claim)
    assert await settled(inbox.ack(OWNER, [message])) == [True]


@pytest.mark.req("C-25", "IBX-API-16", "IBX-API-17", "IBX-API-30")
async def test_claimed_messages_can_be_named_in_four_ways(room: Any) -> None:
    inbox = room.inbox()
    for number in range(4):
        await settled(inbox.enqueue("t", "p", source="s", message_id=str(number)))
    messages = await settled(inbox.claim(OWNER))
    named = [messages[0], messages[1].claim, Key("s", "2"), "3"]
    assert await settled(inbox.ack(OWNER, named)) == [True, True, True, True]
    assert await settled(inbox.ack(OWNER, named)) == [False, False, False, False]
    assert await settled(inbox.ack(OWNER, ["unknown", "3", "3"])) == [False, False, False]


@pytest.mark.req("C-25")
async def test_a_bare_id_that_two_sources_use_is_ambiguous(room: Any) -> None:
    inbox = room.inbox()
    for source in ("stripe", "paypal"):
        await settled(inbox.enqueue("t", source, source=source, message_id="1"))
    await settled(inbox.claim(OWNER))
    with pytest.raises(AmbiguousMessageId):
        await settled(inbox.ack(OWNER, ["1"]))
    with pytest.raises(AmbiguousMessageId):
        await settled(inbox.get("1"))
    assert (await settled(inbox.get("1", "paypal"))).payload == "paypal"
    assert await settled(inbox.ack(OWNER, [Key("stripe", "1")])) == [True]


@pytest.mark.req("IBX-API-28")
async def test_a_message_has_every_field_and_cannot_be_changed(room: Any, clock: FrozenClock) -> None:
    inbox = room.inbox()
    due = clock.now() - timedelta(seconds=5)
    await settled(
        inbox.enqueue("t", "p", source="s", message_id="m", hash=b"h", due=due, headers={"a": "b"}, correlation_id="c")
    )
    message: Message[Any] = await settled(inbox.get("m"))
    assert (message.message_id, message.source, message.topic, message.payload) == ("m", "s", "t", "p")
    assert (message.hash, message.attempt, message.due, message.last_error) == (b"h", 0, due, None)
    assert message.first_seen == message.last_seen == clock.now()
    assert (message.headers, message.correlation_id) == ({"a": "b"}, "c")
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]


@pytest.mark.req("IBX-098", "IBX-099", "IBX-100", "IBX-101", "C-17", "C-20")
async def test_purge_by_policy_in_batches(room: Any, clock: FrozenClock) -> None:
    inbox = room.inbox("kept", retention=timedelta(days=30))
    for number in range(25):
        await settled(inbox.mark_processed(str(number), "s"))
    await settled(inbox.already_processed("seen", "s"))
    await settled(inbox.enqueue("t", "p", source="s", message_id="waiting"))
    await settled(inbox.enqueue("t", "p", source="s", message_id="dead"))
    await settled(inbox.mark_dead("dead", "s"))
    assert await settled(inbox.purge()) == 0
    clock.advance(timedelta(days=31))
    assert await settled(inbox.purge(batch_size=10)) == 25
    counts = await settled(inbox.counts())
    assert counts == {State.SEEN: 1, State.WAITING: 1, State.CLAIMED: 0, State.DONE: 0, State.DEAD: 1}
    assert await settled(inbox.purge("seen", older_than=timedelta(days=1))) == 1
    assert await settled(inbox.purge("dead", older_than=timedelta(days=1))) == 1


@pytest.mark.req("C-44", "IBX-OQ-03", "IBX-OQ-04", "RHI-067", "RHI-169")
async def test_dead_letters_are_listed_and_replayed(room: Any, clock: FrozenClock) -> None:
    inbox = room.inbox()
    for number in range(3):
        await settled(inbox.enqueue("t", number, source="s", message_id=str(number)))
    messages = await settled(inbox.claim(OWNER))
    await settled(inbox.fail(OWNER, messages, "broken"))
    letters = await settled(inbox.dead_letters())
    assert [(m.message_id, m.last_error, m.completed_at) for m in letters] == [
        (str(n), "broken", clock.now()) for n in range(3)
    ]
    [second_page] = await settled(inbox.dead_letters(after=letters[1].id))
    assert second_page.message_id == "2"
    assert await settled(inbox.replay(letters[:1])) == [Key("s", "0")]
    assert await settled(inbox.replay(letters[:1])) == []  # it is no longer dead
    assert await settled(inbox.replay(topic="other")) == []
    assert len(await settled(inbox.replay(topic="t"))) == 2
    assert {m.payload for m in await settled(inbox.claim(OWNER))} == {0, 1, 2}


@pytest.mark.req("IBX-108", "IBX-109", "IBX-112", "IBX-127", "IBX-113", "OBX-096", "OBX-119")
async def test_logs_name_what_happened_and_no_content(
    room: Any, clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "postroom"):
        await settled(room.inbox().enqueue("paid", "secret", source="stripe", message_id="evt_1"))
        await settled(room.inbox().enqueue("paid", "secret", source="stripe", message_id="evt_1"))
        await settled(room.outbox().enqueue("mail", "secret", headers={"h": "secret"}, correlation_id="order-7"))
        await settled(room.inbox().claim(OWNER, 10))
        clock.advance(11)
        await settled(room.inbox().reap())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "postroom"]
    store = room.store.name
    assert lines[0] == (
        "INFO",
        f"enqueued store={store} box=inbox:inbox topic=paid source=stripe message_id=evt_1 state=waiting",
    )
    assert lines[1][1].startswith("duplicate (duplicate): store=")
    assert "correlation_id=order-7" in lines[2][1]
    assert lines[3] == ("DEBUG", f"claimed 1 store={store} box=inbox:inbox")
    assert lines[4][0] == "INFO"
    assert lines[4][1].startswith("reaped 1 leases")
    assert "secret" not in caplog.text


@pytest.mark.req("RHI-128")
async def test_enqueue_many_returns_a_receipt_for_each(room: Any) -> None:
    inbox = room.inbox()
    receipts = await settled(
        inbox.enqueue_many([NewMessage("t", n, source="s", message_id=str(n % 3)) for n in range(5)])
    )
    assert [r.status.value for r in receipts] == ["new", "new", "new", "duplicate", "duplicate"]
    assert await settled(inbox.enqueue_many([])) == []
    assert [m.payload for m in await settled(inbox.find())] == [3, 4, 2]


@pytest.mark.req("RHI-051", "C-15")
async def test_the_dedup_window_is_an_option_of_the_box(room: Any, clock: FrozenClock) -> None:
    window = timedelta(minutes=5)
    short, forever = room.inbox("short", dedup_window=window), room.inbox("none", dedup_window=timedelta(0))
    for inbox in (short, forever):
        assert (await settled(inbox.enqueue("t", "p", source="s", message_id="m"))).is_new
    clock.advance(window - timedelta(seconds=1))
    assert not (await settled(short.enqueue("t", "p", source="s", message_id="m"))).is_new
    clock.advance(1)
    assert (await settled(short.enqueue("t", "p", source="s", message_id="m"))).is_new
    assert not (await settled(forever.enqueue("t", "p", source="s", message_id="m"))).is_new
