"""`on_duplicate`: of a call, of a message in a list, and of a box."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from postroom import ArgumentValueError, DuplicateMessage, NewMessage, Postroom, ReceiptStatus
from tests.support import settled


def new(message_id: str, payload: Any, **options: Any) -> NewMessage:
    return NewMessage("t", payload, source="s", message_id=message_id, **options)


async def payloads(box: Any) -> list[Any]:
    return [message.payload for message in await settled(box.find())]


async def deliver(box: Any, payload: Any, **options: Any) -> Any:
    return await settled(box.enqueue("t", payload, source="s", message_id="m", **options))


@pytest.mark.req("C-16")
async def test_update_is_the_default(room: Any) -> None:
    inbox = room.inbox()
    await deliver(inbox, {"n": 1})
    assert (await deliver(inbox, {"n": 2})).updated
    assert await payloads(inbox) == [{"n": 2}]


@pytest.mark.req("C-16")
async def test_reject_returns_a_receipt(room: Any) -> None:
    inbox = room.inbox()
    await deliver(inbox, {"n": 1})
    receipt = await deliver(inbox, {"n": 2}, on_duplicate="reject")
    assert (receipt.status, receipt.updated, receipt.is_refused) == (ReceiptStatus.DUPLICATE, False, True)
    assert await payloads(inbox) == [{"n": 1}]


@pytest.mark.req("C-16")
async def test_raise_raises_and_changes_nothing(room: Any) -> None:
    inbox = room.inbox()
    first = await deliver(inbox, {"n": 1}, on_duplicate="raise")
    with pytest.raises(
        DuplicateMessage, match=r"'m' of source 's' is known .it is waiting.; .*on_duplicate="
    ) as caught:
        await deliver(inbox, {"secret": 2}, on_duplicate="raise")
    assert "secret" not in str(caught.value)
    assert [receipt.id for receipt in caught.value.receipts] == [first.id]
    assert await payloads(inbox) == [{"n": 1}]
    assert pickle.loads(pickle.dumps(caught.value)).receipts == caught.value.receipts


@pytest.mark.req("C-16")
async def test_raise_in_a_list_stores_what_was_new(room: Any) -> None:
    inbox = room.inbox()
    await settled(inbox.enqueue_many([new("1", "old"), new("2", "old")]))
    given = [new("1", "new"), new("2", "new", on_duplicate="raise"), new("3", "new", on_duplicate="raise")]
    with pytest.raises(DuplicateMessage) as caught:
        await settled(inbox.enqueue_many(given))
    assert [receipt.message_id for receipt in caught.value.receipts] == ["2"]
    assert await payloads(inbox) == ["new", "old", "new"]


@pytest.mark.req("C-16")
async def test_raise_names_the_first_and_counts_the_others(room: Any) -> None:
    inbox = room.inbox("strict", on_duplicate="raise")
    await settled(inbox.enqueue_many([new("1", "old"), new("2\n", "old")]))
    with pytest.raises(DuplicateMessage, match=r"message '1' .* and so are 1 more of this call"):
        await settled(inbox.enqueue_many([new("1", "new"), new("2\n", "new")]))
    with pytest.raises(DuplicateMessage) as caught:
        await settled(inbox.enqueue_many([new("2\n", "new")]))
    assert "\n" not in str(caught.value)


@pytest.mark.req("C-16")
async def test_raise_does_not_raise_where_the_call_did_something(room: Any) -> None:
    inbox = room.inbox()
    await deliver(inbox, "old")
    await settled(inbox.mark_dead("m", "s"))
    assert (await deliver(inbox, "new", on_duplicate="raise", revive_dead=True)).status is ReceiptStatus.REVIVED
    await settled(inbox.already_processed("seen", "s", b"1"))
    seen = inbox.enqueue("t", "new", source="s", message_id="seen", hash=b"2", on_duplicate="raise")
    assert (await settled(seen)).status is ReceiptStatus.CONFLICT
    assert await payloads(inbox) == ["old", "new"]


@pytest.mark.req("C-16")
@pytest.mark.parametrize("payload", [{"n": 2}, "text", b"bytes"])
async def test_an_option_of_the_box(room: Any, payload: Any) -> None:
    """Whatever the way from a payload to a draft."""
    inbox = room.inbox("first", on_duplicate="reject")
    await deliver(inbox, {"n": 1})
    assert (await deliver(inbox, payload)).is_refused
    assert (await deliver(inbox, payload, on_duplicate="update")).updated


def test_other_values_are_refused(room: Any) -> None:
    for call in (
        lambda: Postroom("memory://").inbox(on_duplicate="ignore"),  # type: ignore[arg-type]
        lambda: settled_now(room.inbox(), new("1", {}, on_duplicate="ignore")),
    ):
        with pytest.raises(ArgumentValueError, match="on_duplicate must be"):
            call()


def settled_now(inbox: Any, message: NewMessage) -> None:
    from postroom._boxes.drafts import draft_of

    draft_of(message, inbox.box)
