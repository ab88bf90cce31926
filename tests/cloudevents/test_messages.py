"""Events as messages, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom import NewMessage, ReceiptStatus
from postroom.cloudevents import CloudEvent, CloudEventError, from_message, to_message
from postroom.errors import ArgumentTypeError
from tests.support import STORES, open_room, settled

EVENT = CloudEvent(
    id="A234",
    source="/shop/ä",
    type="order.placed",
    subject="order 7",
    time=datetime(2018, 4, 5, 17, 31, tzinfo=UTC),
    dataschema="https://example.com/schema",
    datacontenttype="application/json",
    extensions={"partitionkey": "customer-1", "traceparent": "00-1"},
    data={"amount": 4200},
)


@pytest.fixture(params=STORES)
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    room = await open_room(request.param, tmp_path)
    yield room
    await settled(room.close())


@pytest.mark.req("CEB-009", "CEB-010")
async def test_source_and_id_are_the_key_and_the_type_is_the_topic(room: Any) -> None:
    inbox = room.inbox()
    first, second = await settled(inbox.enqueue_many([to_message(EVENT), to_message(EVENT)]))
    assert (first.status, second.status) == (ReceiptStatus.NEW, ReceiptStatus.DUPLICATE)
    [message] = await settled(inbox.find())
    assert (message.source, message.message_id, message.topic) == ("/shop/ä", "A234", "order.placed")
    assert (message.payload, message.received_at, message.group) == ({"amount": 4200}, EVENT.time, None)
    assert from_message(message) == EVENT


@pytest.mark.parametrize(
    "changes",
    [
        {"data": None},
        {"data": None, "datacontenttype": None},
        {"data": b"\x00\xff", "datacontenttype": "application/octet-stream"},
        {"data": b"{}", "datacontenttype": None},
        {"data": "<a/>", "datacontenttype": "text/xml"},
        {"data": "a JSON string"},
        {"data": [1, None, "ä"]},
        {"data": 5, "datacontenttype": None},
        {"data": "", "time": None, "subject": None, "extensions": {}, "dataschema": None},
    ],
)
async def test_every_event_becomes_the_same_event_again(room: Any, changes: dict[str, Any]) -> None:
    event = CloudEvent(**{**{name: getattr(EVENT, name) for name in EVENT.__slots__}, **changes})
    inbox = room.inbox()
    await settled(inbox.enqueue_many([to_message(event)]))
    [message] = await settled(inbox.find())
    assert from_message(message) == event


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("subject", "order 7"),
        ("partitionkey", "customer-1"),
        ("missing", None),
        (lambda event: event.source, "/shop/ä"),
        (None, None),
    ],
)
def test_the_group_is_configured(group: Any, expected: str | None) -> None:
    assert to_message(EVENT, group=group).group == expected


def test_a_group_is_a_name_or_a_function() -> None:
    wrong: Any = 5
    with pytest.raises(ArgumentTypeError):
        to_message(EVENT, group=wrong)


async def test_another_content_under_the_same_key_is_a_conflict(room: Any) -> None:
    inbox = room.inbox()
    await settled(inbox.enqueue_many([to_message(EVENT)]))
    other = to_message(CloudEvent(id=EVENT.id, source=EVENT.source, type=EVENT.type, data={"amount": 1}))
    [receipt] = await settled(inbox.enqueue_many([other]))
    assert receipt.status is ReceiptStatus.CONFLICT


async def test_any_message_of_an_outbox_is_an_event(room: Any) -> None:
    outbox = room.outbox("orders")
    await settled(outbox.enqueue_many([NewMessage("order.placed", {"a": 1}, message_id="1", headers={"other": "x"})]))
    [message] = await settled(outbox.find())
    event = from_message(message, source="https://shop.example/orders", type="com.example.order.placed")
    assert event == CloudEvent(
        id="1", source="https://shop.example/orders", type="com.example.order.placed", data={"a": 1}
    )
    with pytest.raises(CloudEventError):
        from_message(message._replace(headers={"ce-Bad_Name": "x"}))
