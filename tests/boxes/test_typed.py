"""Typed messages: dataclasses, msgspec Structs and pydantic models speak for themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from postroom import ArgumentTypeError, ArgumentValueError, NewMessage, ReceiptStatus, topic
from tests.support import settled

USER = UUID("11111111-2222-3333-4444-555555555555")


@dataclass
class Plain:
    name: str
    at: datetime


@topic("user.moved")
@dataclass
class Moved:
    user: UUID
    city: str

    def group_id(self) -> UUID:
        return self.user

    def collapse_key(self) -> str:
        return f"moved:{self.user}"


class Paid(msgspec.Struct):
    deduplication_id: str
    amount: int
    received_at: datetime | None = None


class Mail(pydantic.BaseModel):
    external_id: str
    to: str


@pytest.mark.req("RHI-014", "RHI-107", "RHI-121")
async def test_a_dataclass_alone_is_a_message(room: Any) -> None:
    inbox = room.inbox("shop")
    receipt = await settled(inbox.enqueue(Plain("x", datetime(2030, 1, 1, tzinfo=UTC))))
    message = await settled(inbox.get(receipt.message_id))
    assert (message.topic, message.source) == ("Plain", "shop")
    assert str(UUID(message.message_id)) == message.message_id
    assert message.payload == {"name": "x", "at": "2030-01-01T00:00:00Z"}


@pytest.mark.req("RHI-114", "RHI-115", "RHI-118", "RHI-004", "C-45")
async def test_topic_group_and_collapse_key_come_from_the_type(room: Any) -> None:
    inbox = room.inbox("moves", order="fifo")
    first, second = await settled(inbox.enqueue_many([Moved(USER, "Rome"), Moved(USER, "Oslo")]))
    assert second.superseded == (first.id,)
    [message] = [m for m in await settled(inbox.find()) if m.id == second.id]
    assert (message.topic, message.group, message.collapse_key) == ("user.moved", str(USER), f"moved:{USER}")


@pytest.mark.req("RHI-116", "RHI-120", "RHI-122", "C-12")
async def test_the_key_comes_from_the_type(room: Any) -> None:
    inbox = room.inbox()
    when = datetime(2020, 1, 1, tzinfo=UTC)
    receipt = await settled(inbox.enqueue(Paid("evt_1", 5, when)))
    assert (receipt.source, receipt.message_id) == ("inbox", "evt_1")
    assert not (await settled(inbox.enqueue(Paid("evt_1", 6)))).is_new
    assert (await settled(inbox.get("evt_1"))).received_at == when
    assert (await settled(inbox.enqueue(Mail(external_id="7", to="a@b")))).message_id == "7"
    assert (await settled(inbox.get("7"))).payload == {"external_id": "7", "to": "a@b"}


@pytest.mark.req("RHI-117", "RHI-120", "C-16")
async def test_a_typed_write_with_a_known_id_keeps_the_first_payload(room: Any) -> None:
    inbox = room.inbox()
    await settled(inbox.enqueue(Paid("evt_1", 5)))
    receipt = await settled(inbox.enqueue(Paid("evt_1", 6)))
    assert (receipt.status, receipt.updated) == (ReceiptStatus.DUPLICATE, False)
    assert (await settled(inbox.get("evt_1"))).payload["amount"] == 5
    await settled(inbox.enqueue_many([Mail(external_id="7", to="a@b"), Mail(external_id="7", to="x@y")]))
    assert (await settled(inbox.get("7"))).payload["to"] == "a@b"


@pytest.mark.req("C-16")
async def test_a_typed_write_is_updated_where_the_caller_or_the_box_says_so(room: Any) -> None:
    inbox, updating = room.inbox(), room.inbox("updating", on_duplicate="update")
    for box, options in ((inbox, {"on_duplicate": "update"}), (updating, {})):
        await settled(box.enqueue(Paid("evt_1", 5)))
        assert (await settled(box.enqueue(Paid("evt_1", 6), **options))).updated
        assert (await settled(box.get("evt_1"))).payload["amount"] == 6


async def test_an_id_that_is_an_argument_is_not_the_types_own(room: Any) -> None:
    """The caller chose the key, so the default is that of any other message."""
    outbox = room.outbox()
    await settled(outbox.enqueue(Paid("evt_1", 5), message_id="order 1"))
    assert (await settled(outbox.enqueue(Paid("evt_2", 6), message_id="order 1"))).updated


async def test_arguments_win_over_the_type(room: Any) -> None:
    receipt = await settled(
        room.inbox().enqueue("paid", Paid("evt_1", 5), source="stripe", message_id="other", group="g")
    )
    assert (receipt.source, receipt.message_id) == ("stripe", "other")


async def test_models_inside_other_values(room: Any) -> None:
    receipt = await settled(room.outbox().enqueue("t", {"mails": [Mail(external_id="1", to="x")]}))
    message = await settled(room.outbox().get(receipt.message_id))
    assert message.payload == {"mails": [{"external_id": "1", "to": "x"}]}


@pytest.mark.req("RHI-115", "RHI-170")
async def test_a_fifo_box_needs_a_group(room: Any) -> None:
    inbox = room.inbox("moves", order="fifo")
    calls: list[Callable[[], Any]] = [
        lambda: inbox.enqueue(Paid("1", 5)),
        lambda: inbox.enqueue("t", "p", source="s", message_id="m"),
        lambda: inbox.enqueue_many([NewMessage("t", "p", source="s", message_id="m")]),
    ]
    for call in calls:
        with pytest.raises(ArgumentValueError, match="FIFO"):
            await settled(call())


@dataclass
class Number:
    number: int


@dataclass
class Optional:
    deduplication_id: str | None
    external_id: str = "7"


class External(msgspec.Struct):
    number: int

    def external_id(self) -> str:
        return ""


async def test_a_named_sender_needs_an_id_also_for_a_typed_message(room: Any) -> None:
    """A generated id would make each delivery of the sender new."""
    inbox = room.inbox()
    for item in ("number", Number(5)), (Number(5),):
        with pytest.raises(ArgumentTypeError, match=r"message_id is None: .* or give its type a deduplication_id"):
            await settled(inbox.enqueue(*item, source="bank"))
    with pytest.raises(ArgumentTypeError, match="message_id is None"):
        await settled(inbox.enqueue_many([NewMessage(Number(5), source="bank")]))
    assert await settled(inbox.find()) == []
    assert (await settled(inbox.enqueue(Number(5), source="bank", message_id="1"))).source == "bank"
    assert (await settled(inbox.enqueue(Paid("evt_1", 5), source="bank"))).message_id == "evt_1"
    assert (await settled(room.outbox().enqueue(Number(5), source="bank"))).is_new


@pytest.mark.req("C-12")
async def test_a_typed_message_without_source_and_id_gets_a_generated_id(room: Any) -> None:
    inbox = room.inbox("shop")
    receipts = [await settled(inbox.enqueue(Number(5))) for _ in range(2)]
    assert [(receipt.source, receipt.is_new) for receipt in receipts] == [("shop", True)] * 2


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Optional(None), "deduplication_id of Optional is None"),
        (Optional(""), "deduplication_id of Optional is empty"),
        (External(1), "external_id of External is empty"),
    ],
)
async def test_an_id_of_the_type_must_not_be_empty(room: Any, message: Any, problem: str) -> None:
    for box in (room.inbox(), room.outbox()):
        with pytest.raises(ArgumentValueError, match=f"^{problem}: return the text that identifies this message"):
            await settled(box.enqueue(message))
        assert (await settled(box.enqueue(message, message_id="1"))).message_id == "1"


async def test_a_typed_message_and_a_payload_are_one_too_many(room: Any) -> None:
    for payload in ({"number": 2}, None, Number(3)):
        with pytest.raises(ArgumentTypeError, match="Number was passed together with another payload: pass the Number"):
            await settled(room.outbox().enqueue(Number(1), payload))


async def test_an_inbox_needs_a_key(room: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="message_id is None"):
        await settled(room.inbox().enqueue("t", {"a": 1}, source="s"))
    with pytest.raises(ArgumentTypeError, match="source is None"):
        await settled(room.inbox().enqueue("t", {"a": 1}, message_id="m"))


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_topic_is_checked_where_it_is_declared(name: str) -> None:
    with pytest.raises(ArgumentValueError, match="topic"):
        topic(name)
