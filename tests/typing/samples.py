"""User code, as a type checker sees it. Never run: `test_typing.py` gives it to mypy."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import uuid4

import msgspec

from postroom import (
    Backoff,
    BoxHealth,
    Claim,
    Cleaned,
    Cleaning,
    Event,
    Inbox,
    Join,
    JoinId,
    JoinStatus,
    JoinStep,
    Key,
    Message,
    NewMessage,
    Observer,
    Outbox,
    Outcome,
    OwnerToken,
    Postroom,
    Reaped,
    Receipt,
    ReceiptStatus,
    State,
    StepStatus,
    StorageRetry,
    sync,
    topic,
)


class Placed:
    """What several messages have in common."""


@topic("order.placed")
@dataclass
class OrderPlaced(Placed):
    order: int


class OrderPaid(msgspec.Struct):
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
        assert_type(await outbox.enqueue(OrderPaid(1), due=datetime.now(UTC)), Receipt)
        assert_type(await outbox.enqueue_many([NewMessage("a", "b"), OrderPlaced(1), OrderPaid(1)]), list[Receipt])

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
        assert_type(await inbox.cancel(messages), list[Key])
        assert_type(await inbox.cancel(Key("s", "1")), list[Key])
        assert_type(await inbox.purge("done", older_than=timedelta(days=1)), int)


async def use_joins(outbox: Outbox, receipt: Receipt) -> None:
    join = await outbox.start_join("acme", 3, "{}", deadline=datetime.now(UTC))
    assert_type(join, JoinId)
    assert_type(await outbox.start_join(uuid4()), JoinId)
    assert_type(await outbox.enqueue("a", "b", join=join), Receipt)
    assert_type(await outbox.enqueue(OrderPlaced(1), join=join), Receipt)
    assert_type(await outbox.enqueue_many([NewMessage("a", "b", join=join), OrderPlaced(1)], join=join), list[Receipt])
    assert_type(await outbox.attach_message_to_join(join, receipt), bool)
    assert_type(await outbox.report_step_completed(join, "1"), bool)
    assert_type(await outbox.report_step_failed(join, receipt.key), bool)
    wait = await outbox.enqueue_join_wait(join, False, "next", OrderPaid(1), on_fail_topic="f", correlation_id="c")
    assert_type(wait, Receipt)
    assert_type(await outbox.seal_join(join), bool)
    assert_type(await outbox.cancel_join(join), bool)
    found = await outbox.get_join(join)
    assert_type(found, Join)
    assert_type(found.id, JoinId)
    assert_type(found.expected_steps, int | None)
    assert_type(await outbox.joins(tenant_id=7, statuses=[JoinStatus.FAILED]), list[Join])
    steps = await outbox.join_steps(join, after=0, limit=10)
    assert_type(steps, list[JoinStep])
    assert_type(steps[0].status, StepStatus)


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
        assert_type(outbox.start_join("acme", tx=db), JoinId)
        assert_type(outbox.join_steps(outbox.joins()[0].id), list[JoinStep])
        assert_type(inbox.counts(), Mapping[State, int])
        assert_type(inbox.is_processed("1", "bank"), bool)


room = Postroom(
    "sqlite:///shop.db",
    storage_retry=StorageRetry.NONE,
    cleaning=Cleaning(automatic=False),
    shutdown_timeout=timedelta(seconds=5),
)
orders = room.inbox(
    "orders",
    batch_size=10,
    lease_seconds=5.5,
    lease_renewal=False,
    concurrency=2,
    poll_interval=timedelta(seconds=1),
    max_poll_interval=timedelta(seconds=2),
    handler_timeout=None,
    on_unhandled="dead",
    on_undecodable="dead",
)


@orders.handler(OrderPlaced, concurrency=2, timeout=timedelta(seconds=1))
async def place(message: Message[OrderPlaced]) -> Outcome:
    assert_type(message.lease_lost, bool)
    return Outcome.RETRY.after(timedelta(seconds=1)).because("later")


@orders.handler("order.cancelled", batch=10, transactional=True)
async def cancel(messages: list[Message[Any]], tx: Any) -> dict[str, Outcome]:
    return {message.message_id: Outcome.SUCCESS for message in messages}


@orders.handler(OrderPlaced, batch=10)
def count(messages: Sequence[Message[OrderPlaced]]) -> list[Outcome]:
    return [Outcome.SUCCESS for _ in messages]


@orders.handler(OrderPlaced, transactional=True)
async def store(message: Message[Placed], tx: sqlite3.Connection) -> None:
    """A handler of a base class takes its subclasses."""


@room.on_start
async def connect() -> None: ...


async def use_running() -> None:
    # A decorator gives back the function that it was given, with its type.
    assert_type(await place((await orders.claim(OwnerToken.new()))[0]), Outcome)
    assert_type(await connect(), None)
    await room.start()
    await orders.stop()
    assert_type(room.is_running, bool)
    assert_type(orders.is_running, bool)
    assert_type(room.health(), dict[str, BoxHealth])
    assert_type(await room.is_ready(), bool)
    assert_type(await room.drain(), int)
    assert_type(await room.cleanup("orders"), dict[str, Cleaned])
    assert_type(await orders.blocked_groups(), list[str])
    assert_type(await orders.skip_blocked("group"), list[Key])
    await room.stop()


def handle(message: Message[OrderPlaced]) -> None:
    assert_type(message.payload, OrderPlaced)
    assert_type(message.payload.order, int)


@orders.handler("order.returned")
async def take_back(message: Message) -> None:
    """Who does not care what the payload is writes no type for it."""
    assert_type(message.payload, Any)


def register(batch: int | None, transactional: bool) -> None:
    """Options that are not known to the type checker."""

    @orders.handler("order.sent", batch=batch)
    async def sent(given: Any) -> None: ...

    assert_type(orders.handler("order.sent", transactional=transactional)(Returns()), Returns)


class Returns:
    """A handler may be an object, with whatever it needs."""

    async def handle(self, message: Message[OrderPlaced]) -> None: ...


assert_type(orders.handler("order.sent_back")(Returns()), Returns)
orders.handler(OrderPlaced)(Returns())
