"""`room.start(boxes=…)` and `room.run(boxes=…)`: a process that works on some boxes of a room only."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Cleaning, Event, Message, Postroom, State
from postroom._kernel.observer import observes
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import always, put, soon, state_of


async def test_only_these_are_started_and_others_may_follow(room: Postroom) -> None:
    got, came = list[str](), asyncio.Event()

    async def handle(message: Message[str]) -> None:
        got.append(message.message_id)
        came.set()

    orders, mail = room.inbox("orders"), room.outbox("mail")
    for box in (orders, mail):
        box.handler("t")(handle)
        await put(box, box.name)
    await room.start([mail])
    await soon(came.wait())
    assert (orders.is_running, mail.is_running) == (False, True)
    assert got == ["mail"]
    assert await state_of(orders, "orders") is State.WAITING
    assert list(room.health()) == ["outbox:mail"]
    came.clear()
    await room.start([orders])
    await soon(came.wait())
    assert (orders.is_running, mail.is_running) == (True, True)


async def test_only_these_are_cleaned(open_room: OpenRoom) -> None:
    reaped, twice = list[str](), asyncio.Event()

    @observes("reap")
    def watch(event: Event) -> None:
        reaped.append(event.box.name)
        if len(reaped) > 1:
            twice.set()

    room = await open_room(cleaning=Cleaning(reap_interval=timedelta(milliseconds=1)), observers=[watch])
    orders, mail = room.inbox("orders"), room.outbox("mail")
    for box in (orders, mail):
        box.handler("t")(always())
    await room.start([mail])
    await soon(twice.wait())
    assert set(reaped) == {"mail"}


async def test_a_box_that_cannot_be_started_is_refused(room: Postroom) -> None:
    room.inbox("orders").handler("t")(always())
    strange: Any = Postroom("memory://").inbox("orders")
    strange.handler("t")(always())
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([room.outbox("mail")], ArgumentValueError, "outbox 'mail' has no handlers: register one, or leave this"),
        ([strange], ArgumentValueError, "inbox 'orders' is a box of another room"),
        ([], ArgumentValueError, "boxes must not be empty; leave it out to start all boxes"),
        (["orders"], ArgumentTypeError, "boxes must be a list of inboxes and outboxes, not of str"),
        ("orders", ArgumentTypeError, "boxes must be a list of inboxes and outboxes, not str"),
        (room.inbox("orders"), ArgumentTypeError, "boxes must be a list of inboxes and outboxes, not Inbox"),
    ]
    for boxes, error, text in wrong:
        with pytest.raises(error, match=text):
            await room.start(boxes)
        with pytest.raises(error, match=text):
            room.run(boxes)
    assert not room.is_running


async def test_a_room_that_cleans_alone_may_choose_boxes_without_handlers(open_room: OpenRoom) -> None:
    room = await open_room(cleaning=Cleaning())
    await room.start([room.outbox("mail")])
    assert room.is_running
