"""`cancel`: how messages are named, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Ending, Key, OwnerToken, State
from postroom.testing import FrozenClock
from tests.support import settled

SOON = timedelta(minutes=5)


async def put(box: Any, *names: str, **options: Any) -> list[Any]:
    return [await settled(box.enqueue("t", {}, source="s", message_id=name, **options)) for name in names]


async def waiting(box: Any) -> list[str]:
    return [message.message_id for message in await settled(box.find(states=[State.WAITING]))]


async def test_by_receipt_message_id_key_and_both(room: Any) -> None:
    inbox = room.inbox()
    first, second, *_ = await put(inbox, "1", "2", "3", "4", "5")
    third = await settled(inbox.get("3"))
    assert await settled(inbox.cancel(first)) == [Key("s", "1")]
    assert await settled(inbox.cancel(second.id)) == [Key("s", "2")]
    assert await settled(inbox.cancel([third, Key("s", "4")])) == [Key("s", "3"), Key("s", "4")]
    assert await waiting(inbox) == ["5"]
    message = await settled(inbox.get("3"))
    assert (message.state, message.ending) == (State.DONE, Ending.CANCELLED)


async def test_an_outbox_knows_the_source_of_a_message_id(room: Any) -> None:
    outbox = room.outbox()
    receipt = await settled(outbox.enqueue("reminder", {}, message_id="reminder 7"))
    await settled(outbox.enqueue("reminder", {}, message_id="reminder 7", source="other"))
    assert await settled(outbox.cancel("reminder 7")) == [receipt.key]
    assert await settled(outbox.cancel(["reminder 7"])) == []


async def test_by_correlation_id(room: Any) -> None:
    inbox = room.inbox()
    await put(inbox, "1", "2", correlation_id="order 7")
    await put(inbox, "3")
    assert await settled(inbox.cancel(correlation_id="order 7", limit=1)) == [Key("s", "1")]
    assert await settled(inbox.cancel(correlation_id="order 7")) == [Key("s", "2")]
    assert await waiting(inbox) == ["3"]


async def test_messages_and_a_filter_restrict_each_other(room: Any) -> None:
    inbox = room.inbox()
    receipts = await put(inbox, "1", correlation_id="order 7") + await put(inbox, "2")
    assert await settled(inbox.cancel(receipts, correlation_id="order 7")) == [Key("s", "1")]


async def test_a_delayed_message_is_never_handed_out(room: Any, clock: FrozenClock) -> None:
    outbox = room.outbox()
    await settled(outbox.enqueue("reminder", {}, message_id="reminder 7", due=clock.now() + SOON))
    await settled(outbox.cancel("reminder 7"))
    clock.advance(2 * SOON)
    assert await settled(outbox.claim(OwnerToken.new())) == []
    assert (await settled(outbox.enqueue("reminder", {}, message_id="reminder 7"))).state is State.DONE


async def test_a_claimed_message_is_not_in_the_result(room: Any) -> None:
    inbox, owner = room.inbox(), OwnerToken.new()
    receipts = await put(inbox, "1", "2")
    [claimed] = await settled(inbox.claim(owner, batch_size=1))
    cancelled = await settled(inbox.cancel(receipts))
    assert len(cancelled) == 1
    assert claimed.key not in cancelled
    assert await settled(inbox.ack(owner, [claimed])) == [True]


async def test_nothing_to_cancel(room: Any) -> None:
    inbox = room.inbox()
    assert await settled(inbox.cancel([])) == []
    assert await settled(inbox.cancel([Key("s", "unknown"), 12345])) == []


async def test_cancelling_everything_must_be_said(room: Any) -> None:
    inbox = room.inbox()
    await put(inbox, "1")
    with pytest.raises(ArgumentTypeError, match="cancel needs to know which messages"):
        await settled(inbox.cancel())
    assert await waiting(inbox) == ["1"]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("1", ArgumentTypeError, "pass Key"),
        (["1"], ArgumentTypeError, "pass Key"),
        (0, ArgumentValueError, "message id must be between"),
        ([None], ArgumentTypeError, "message id"),
        (1.5, ArgumentTypeError, "messages must be a list, not float"),
        (Key("", "1"), ArgumentValueError, "source"),
        (Key("s", ""), ArgumentValueError, "message_id"),
    ],
)
async def test_bad_names(room: Any, given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        await settled(room.inbox().cancel(given))
