"""A handler that blocks the event loop is reported while it does."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from typing import Any, Self

import pytest

from postroom import Message, Postroom
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import Gate, Logged, always, put, soon

WATCHDOG = "postroom watchdog"


class Reports(logging.Handler):
    """Ends the block as soon as the watchdog has reported it: the test waits for nothing else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reported = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "event loop" in record.getMessage():
            self.messages.append(record.getMessage())
            self.reported.set()

    def __enter__(self) -> Self:
        logging.getLogger("postroom").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("postroom").removeHandler(self)


def blocks(event: threading.Event) -> None:
    assert event.wait(10), "the watchdog reported nothing"


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(WATCHDOG)]


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
@pytest.mark.parametrize("batch", [None, 5])
async def test_it_names_handler_messages_and_line(
    room: Postroom, caplog: pytest.LogCaptureFixture, level: int, batch: int | None
) -> None:
    caplog.set_level(level, "postroom")  # with INFO, a handler is called in another way
    box = room.inbox(lease_seconds=0.5)
    done = asyncio.Event()

    @box.handler("t", batch=batch)
    async def pay(_: Any) -> None:
        blocks(reports.reported)
        done.set()

    await put(box, "one\ntwo")
    with Reports() as reports:
        await room.start()
        await soon(done.wait())
        await room.stop()
    text = reports.messages[0]
    assert text.startswith(f"store={room.store.name} box=inbox:inbox topic=t source=s message_id=one\\ntwo handler=")
    assert re.search(r"pay blocks the event loop since \d+\.\d s at ", text)
    assert f"{__file__}:" in text
    assert "(pay), in " in text
    assert "Write the handler as a plain function (def)" in text
    assert "asyncio.to_thread" in text


@pytest.mark.parametrize("store", ["aiosqlite"])
async def test_in_a_transaction(room: Postroom) -> None:
    box = room.inbox(lease_seconds=0.5)
    done = asyncio.Event()

    @box.handler("t", transactional=True)
    async def pay(_: Any, tx: Any) -> None:
        blocks(reports.reported)
        done.set()

    await put(box, 1)
    with Reports() as reports:
        await room.start()
        await soon(done.wait())
        await room.stop()
    assert "message_id=1" in reports.messages[0]


async def test_a_large_batch_is_not_named_in_full(room: Postroom) -> None:
    box = room.inbox(lease_seconds=0.5)
    done = asyncio.Event()

    @box.handler("t", batch=10)
    async def pay(_: Any) -> None:
        blocks(reports.reported)
        done.set()

    await put(box, *range(10))
    with Reports() as reports:
        await room.start()
        await soon(done.wait())
        await room.stop()
    assert "message_id=2 and 7 more" in reports.messages[0]


async def test_code_outside_of_handlers_is_named_too(room: Postroom) -> None:
    box = room.inbox(lease_seconds=0.5)
    gate = Gate()
    box.handler("t")(gate)
    await put(box, 1)
    with Reports() as reports:
        await room.start()
        await gate.reached()
        blocks(reports.reported)
        gate.open()
        await room.stop()
    assert "by code outside of handlers, at " in reports.messages[0]
    assert f"store={room.store.name} " in reports.messages[0]


async def test_it_says_when_the_loop_runs_again(room: Postroom, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postroom")
    box = room.inbox(lease_seconds=0.5)

    @box.handler("t")
    async def pay(_: Message[Any]) -> None:
        blocks(reports.reported)

    await put(box, 1)
    with Reports() as reports, Logged() as logged:
        await room.start()
        await logged.says("the event loop runs again after")
        await room.stop()


async def test_a_plain_function_blocks_nothing(room: Postroom) -> None:
    """A whole lease long: it is renewed twice, at half of its time."""
    box = room.inbox(lease_seconds=2)
    may_end, begun = threading.Event(), threading.Event()

    @box.handler("t")
    def pay(_: Any) -> None:
        begun.set()
        may_end.wait(10)

    renewed = asyncio.Semaphore(0)
    renew = room.store.renew

    async def count(*args: Any) -> Any:
        renewed.release()
        return await renew(*args)

    room.store.renew = count
    await put(box, 1)
    with Reports() as reports:
        await room.start()
        for _ in range(2):
            await soon(renewed.acquire())
        may_end.set()
        await room.stop()
    assert begun.is_set()
    assert reports.messages == []


async def test_one_thread_for_all_boxes_until_the_last_one_stops(open_room: OpenRoom) -> None:
    before = set(watchdogs())
    room = await open_room()
    inbox, outbox = room.inbox(), room.outbox()
    inbox.handler("t")(always())
    outbox.handler("t")(always())
    assert set(watchdogs()) == before
    await room.start()
    [thread] = set(watchdogs()) - before
    await inbox.stop()
    assert thread.is_alive()
    await room.stop()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    await room.start()
    assert len(set(watchdogs()) - before) == 1
    await room.stop()


def test_it_ends_with_its_loop() -> None:
    before = set(watchdogs())
    room = Postroom("memory://")
    room.inbox(lease_seconds=0.2).handler("t")(always())
    asyncio.run(room.start())
    [thread] = set(watchdogs()) - before
    thread.join(10)
    assert not thread.is_alive()
