"""User code, as a type checker sees it. Never run: `test_typing.py` gives it to mypy."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from postroom import (
    Backoff,
    Claim,
    Event,
    Inbox,
    Key,
    Message,
    NewMessage,
    Observer,
    Outbox,
    OwnerToken,
    Postroom,
    Reaped,
    Receipt,
    ReceiptStatus,
    State,
    sync,
    topic,
)


@topic("order.placed")
@dataclass
class OrderPlaced:
    order: int


def observe(event: Event) -> None:
    assert_type(event.verb, str)


observer: Observer = observe


async def use_async() -> None:
    async with Postroom("sqlite:///shop.db", deploy_schema=True, observers=[observer]) as room:
        assert_type(room, Postroom)
        assert_type(await room.migrate(), list[int])
        inbox, outbox = room.inbox("activity", order="fifo", backoff=Backoff.immediate()), room.outbox()
        assert_type(inbox, Inbox)
        assert_type(outbox, Outbox)

        receipt = await inbox.enqueue("paid", {"cents": 1}, source="bank", message_id="1", due=datetime.now(UTC))
        assert_type(receipt, Receipt)
        assert_type(receipt.status, ReceiptStatus)
        assert_type(receipt.is_new, bool)
        assert_type(await outbox.enqueue(OrderPlaced(1)), Receipt)
        assert_type(await outbox.enqueue_many([NewMessage("a", "b"), OrderPlaced(1)]), list[Receipt])

        owner = OwnerToken.new()
        messages = await inbox.claim(owner, 30, 10, topics=["paid"])
        assert_type(messages, list[Message[Any]])
        assert_type(messages[0].claim, Claim | None)
        assert_type(messages[0].key, Key)
        assert_type(await inbox.ack(owner, messages), list[bool])
        assert_type(await inbox.abandon(owner, ["1"], last_error="x", delay=timedelta(seconds=1)), list[bool])
        assert_type(await inbox.release(owner, [messages[0].key]), list[bool])
        assert_type(await inbox.fail(owner, messages, "broken"), list[bool])
        assert_type(await outbox.fail(owner, messages), list[bool])
        assert_type(await inbox.renew(owner, messages), list[bool])
        assert_type(await inbox.reap(), Reaped)

        assert_type(await inbox.already_processed("1", "bank", b"hash"), bool)
        assert_type(await inbox.mark_processed("1", "bank"), bool)
        assert_type(await inbox.get("1"), Message[Any])
        assert_type(await inbox.find(states=[State.DONE]), list[Message[Any]])
        assert_type(await inbox.counts(), Mapping[State, int])
        assert_type(await inbox.replay(messages), list[Key])
        assert_type(await inbox.purge("done", older_than=timedelta(days=1)), int)


def use_sync(db: sqlite3.Connection) -> None:
    with sync.Postroom("sqlite:///shop.db") as room:
        assert_type(room, sync.Postroom)
        assert_type(room.migrate(), list[int])
        inbox, outbox = room.inbox(), room.outbox()
        assert_type(inbox, sync.Inbox)
        assert_type(outbox.enqueue("order.placed", {"order": 1}, tx=db), Receipt)
        owner = OwnerToken.new()
        assert_type(inbox.claim(owner), list[Message[Any]])
        assert_type(inbox.ack(owner, inbox.claim(owner)), list[bool])
        assert_type(inbox.counts(), Mapping[State, int])
        assert_type(inbox.is_processed("1", "bank"), bool)


def handle(message: Message[OrderPlaced]) -> None:
    assert_type(message.payload, OrderPlaced)
    assert_type(message.payload.order, int)
