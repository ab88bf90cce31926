"""Handlers in a room with many stores: one registration serves all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom import Backoff, Message, Outcome, Postroom, State, StoreConfig
from postroom.testing import Events
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, Looks, databases, mixed
from tests.runtime.support import Gate, Gauge, Logged, put, soon, states


@pytest.mark.req("IBX-085", "OBX-060", "C-60")
async def test_one_registration_serves_all_stores(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, events: Events
) -> None:
    room = open_room(urls)
    room.inbox().handler("t")(handled)
    room.outbox().handler("t")(handled)
    for key in KEYS[:2]:
        await put(room.router.inbox(key), "before")
    async with room:
        for key in KEYS:
            await put(room.router.inbox(key), "in")
            await put(room.router.outbox(key), "out")
        await handled.until(*((key, id_) for key in KEYS for id_ in ("in", "out")), ("acme", "before"))
        await handled.until(("bolt", "before"))
        for key in KEYS:
            await events.wait("settle", lambda event, key=key: event.store == key)  # type: ignore[misc]
    assert len(handled.seen) == len(set(handled.seen)) == 8
    for key, url in urls.items():
        assert set((await states_at(url)).values()) == {State.DONE}, key


async def states_at(url: str) -> dict[str, State]:
    async with Postroom(url) as room:
        return await states(room.inbox())


@pytest.mark.req("IBX-085", "OBX-060")
async def test_a_mixed_room(open_room: OpenRoom, tmp_path: Path, handled: Handled) -> None:
    room = open_room(mixed(tmp_path))
    room.inbox().handler("t")(handled)
    keys = room.router.keys
    async with room:
        for key in keys:
            await put(room.router.inbox(key), "1", "2")
        await handled.until(*((key, id_) for key in keys for id_ in "12"))
    assert sorted(handled.seen) == sorted((key, id_) for key in keys for id_ in "12")


async def test_a_transactional_handler_has_the_transaction_of_the_store(
    open_room: OpenRoom, urls: dict[str, str]
) -> None:
    room = open_room(urls)

    @room.inbox().handler("t", transactional=True)
    async def handle(message: Message[Any], tx: Any) -> None:
        outbox = room.router.outbox(message.store)
        await outbox.enqueue("done", message.store, message_id=message.message_id, tx=tx)
        if message.payload == "bad":
            raise ValueError("no")

    for key in KEYS:
        await put(room.router.inbox(key), "1")
        await put(room.router.inbox(key), "2", payload="bad")
    assert await room.drain() == 6
    for key in KEYS:
        assert [(m.message_id, m.payload) for m in await room.router.outbox(key).find()] == [("1", key)]
        assert await states(room.router.inbox(key)) == {"1": State.DONE, "2": State.WAITING}


async def test_the_transaction_of_another_store_fails_the_message(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)

    @room.inbox().handler("t", transactional=True)
    async def handle(message: Message[Any], tx: Any) -> None:
        await room.router.outbox("bolt").enqueue("done", "x", message_id="1", tx=tx)

    await put(room.router.inbox("acme"), "1")
    await room.drain()
    (message,) = await room.router.inbox("acme").find()
    assert (message.state, message.attempt) == (State.WAITING, 1)
    assert "tx is of store 'acme', this call is of store 'bolt'" in (message.last_error or "")
    assert await room.router.outbox("bolt").find() == []


async def test_batches_are_of_one_store(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)
    batches: list[tuple[set[str], int]] = []

    @room.inbox(batch_size=10).handler("t", batch=10)
    async def handle(messages: list[Message[Any]]) -> list[Outcome]:
        batches.append(({message.store for message in messages}, len(messages)))
        return [Outcome.SUCCESS if message.message_id != "3" else Outcome.DEAD for message in messages]

    for key in KEYS:
        await put(room.router.inbox(key), *range(20))
    assert await room.drain() == 60
    assert all(len(stores) == 1 for stores, _ in batches)
    assert sum(count for _, count in batches) == 60
    for key in KEYS:
        found = await states(room.router.inbox(key))
        assert [id_ for id_, state in found.items() if state is State.DEAD] == ["3"]
        assert len([state for state in found.values() if state is State.DONE]) == 19


async def test_groups_keep_their_order_in_each_store(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled
) -> None:
    """The same group in two stores is two groups."""
    room = open_room(urls)
    running = {key: Gauge() for key in KEYS}
    gate = Gate()

    @room.inbox(order="fifo", concurrency=4, batch_size=3).handler("t")
    async def handle(message: Message[Any]) -> None:
        with running[message.store]:
            await gate()
            handled.note(message)

    for key in KEYS:
        await put(room.router.inbox(key), *range(10), group="g")
    async with room:
        await gate.reached(3)
        gate.open()
        await handled.until(*((key, "9") for key in KEYS))
    for key in KEYS:
        assert [id_ for store, id_ in handled.seen if store == key] == [str(number) for number in range(10)]
    assert [gauge.most for gauge in running.values()] == [1, 1, 1], "one message of a group at a time"
    assert gate.inside.most == 3, "but the stores work at the same time"


@pytest.mark.req("IBX-090", "IBX-113", "OBX-065", "OBX-101")
@pytest.mark.parametrize("kind", ["inbox", "outbox"])
async def test_the_store_is_in_every_record_and_event(
    open_room: OpenRoom, urls: dict[str, str], events: Events, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="postroom")
    room = open_room(urls)
    box = room.inbox(max_attempts=1) if kind == "inbox" else room.outbox(max_attempts=1)

    @box.handler("t")
    async def handle(message: Message[Any]) -> None:
        if message.message_id == "2":
            raise ValueError("no")

    with Logged() as logged:
        for key in KEYS:
            await put(getattr(room.router, kind)(key), "1", "2")
        async with room:
            for key in KEYS:
                await logged.says(f"store={key} box={kind}:{kind} ")
                await logged.says(f"store={key} box={kind}:{kind} topic=t source=s message_id=2")
                await events.wait("settle", lambda event, key=key: event.store == key)  # type: ignore[misc]
        of_boxes = [record.message for record in logged.records if "box=" in record.message]
        assert len(of_boxes) >= 6
        assert [text for text in of_boxes if not any(f"store={key} " in text for key in (*KEYS, "many"))] == []
    assert {event.store for event in events.seen} == set(KEYS)


async def test_concurrency_is_that_of_the_box_over_all_stores(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)
    gate = Gate()
    room.inbox(concurrency=2, batch_size=5).handler("t")(gate)
    for key in KEYS:
        await put(room.router.inbox(key), *range(5))
    async with room:
        await gate.reached(2)
        assert room.health()["inbox:inbox"].in_hand >= 2
        gate.open()
        await gate.reached(15)
    assert gate.inside.most == 2


async def test_a_store_has_its_own_limit(open_room: OpenRoom, engine: str, tmp_path: Path) -> None:
    urls = databases(engine, tmp_path)
    room = open_room({"acme": StoreConfig(urls["acme"], concurrency=1), "bolt": urls["bolt"]})
    gauges = {"acme": Gauge(), "bolt": Gauge()}
    gate = Gate()

    @room.inbox(concurrency=4).handler("t")
    async def handle(message: Message[Any]) -> None:
        with gauges[message.store]:
            await gate(message)

    for key in gauges:
        await put(room.router.inbox(key), *range(6))
    async with room:
        await gate.reached(4)
        gate.open()
        await gate.reached(12)
    assert gauges["acme"].most == 1
    assert gauges["bolt"].most >= 3, "4 while no handler of acme runs"


async def test_a_store_that_cannot_do_what_the_boxes_need_is_left_out(
    open_room: OpenRoom, tmp_path: Path, handled: Handled
) -> None:
    room = open_room({**databases("sqlite", tmp_path, ["acme"]), "ram": "memory://"})

    @room.inbox().handler("t", transactional=True)
    async def handle(message: Message[Any], tx: Any) -> None:
        handled.note(message)

    await put(room.router.inbox("acme"), "1")
    await put(room.router.inbox("ram"), "1")
    with Logged() as logged:
        async with room:
            await handled.until(("acme", "1"))
            record = await logged.says("store=ram is left out")
    assert "transactions" in record.message
    assert handled.seen == [("acme", "1")]


async def test_a_handler_puts_into_another_store(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    room = open_room(urls)

    @room.inbox().handler("t")
    async def handle(message: Message[Any]) -> None:
        await put(room.router.outbox("crow"), f"from-{message.store}", topic="u")

    room.outbox().handler("u")(handled)
    async with room:
        await put(room.router.inbox("acme"), "1")
        await put(room.router.inbox("bolt"), "1")
        await handled.until(("crow", "from-acme"), ("crow", "from-bolt"))


async def test_a_put_in_a_transaction_is_found_after_the_commit(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks, quick: None
) -> None:
    room = open_room(urls, notify=False)
    room.inbox().handler("t")(handled)
    async with room:
        await looks.until(*KEYS)
        async with room.router.store("bolt").transaction() as tx:
            await room.router.inbox("bolt").enqueue("t", "x", source="s", message_id="1", tx=tx)
        await handled.until(("bolt", "1"))


async def test_a_retry_needs_no_polling(open_room: OpenRoom, urls: dict[str, str], events: Events) -> None:
    """The look reports when the message is due again."""
    room = open_room(urls, notify=False)
    done = Handled()

    @room.inbox(backoff=Backoff.constant(0.3)).handler("t")
    async def handle(message: Message[Any]) -> None:
        if not message.attempt:
            raise ValueError("no")
        done.note(message)

    async with room:
        await put(room.router.inbox("acme"), "1")
        await soon(done.until(("acme", "1")), 5)
