"""What the runtime logs: names, ids and errors, with store and box; never a payload."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from postroom import Message, Outcome, Postroom
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, Sabotage, always, put, soon

SECRET = "the payload's own secret"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.mark.parametrize("kind", ["inbox", "outbox"])
@pytest.mark.req("IBX-110", "OBX-098", "IBX-113", "OBX-101", "IBX-109", "OBX-097", "IBX-090", "OBX-065")
async def test_each_call_of_a_handler(still: Postroom, kind: str) -> None:
    box: Any = getattr(still, kind)()
    box.handler("single")(always())
    box.handler("batch", batch=5)(always())
    with Logged() as logged:
        await put(box, 1, topic="single")
        await put(box, 2, 3, topic="batch")
        await still.drain()
    calls = logged.saying("handling")
    assert [record.levelno for record in calls] == [logging.INFO] * 3
    where = f"store={still.store.name} box={kind}:{kind}"
    assert [record.message for record in calls] == [
        f"{where} handling topic={topic} source=s message_id={id_} attempt=1"
        for topic, id_ in (("single", 1), ("batch", 2), ("batch", 3))
    ]
    claims = logged.saying(f"claimed 3 store={still.store.name} box={kind}:{kind}")
    assert [record.levelno for record in claims] == [logging.DEBUG]


@pytest.mark.parametrize("batch", [None, 5])
async def test_failures_that_are_no_exceptions(still: Postroom, batch: int | None) -> None:
    box = still.inbox()
    box.handler("says", batch=batch)(always(Outcome.FAILED.because("remote said 500")))
    box.handler("odd", batch=batch)(always("fine"))
    with Logged() as logged:
        await put(box, 1, topic="says")
        await put(box, 2, topic="odd")
        await still.drain()
    [said] = logged.saying("remote said 500")
    [odd] = logged.saying("returned a str")
    assert [record.levelno for record in (said, odd)] == [logging.WARNING] * 2
    assert "message_id=1" in said.message
    assert "message_id=2" in odd.message


@pytest.mark.parametrize("kind", ["inbox", "outbox"])
@pytest.mark.req("IBX-111", "OBX-099", "IBX-113", "OBX-101")
async def test_exceptions_of_handlers(still: Postroom, kind: str) -> None:
    box: Any = getattr(still, kind)()

    async def fails(_: Any) -> None:
        raise LookupError("no such customer")

    box.handler("single")(fails)
    box.handler("batch", batch=5)(fails)
    with Logged() as logged:
        await put(box, 1, topic="single")
        await put(box, 2, 3, topic="batch")
        await still.drain()
    where = f"store={still.store.name} box={kind}:{kind}"
    errors = logged.saying("LookupError: no such customer")
    assert [record.levelno for record in errors] == [logging.WARNING] * 4  # the batch, and each of it alone
    assert all(record.message.startswith(where) for record in errors)
    assert [record.message.partition("message_id=")[2][:1] for record in errors] == ["1", "", "2", "3"]
    for record in errors:
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], LookupError)


@pytest.mark.req("IBX-113", "OBX-101")
async def test_no_payload_and_always_a_store_and_a_box(
    open_room: OpenRoom, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Through everything that is worth a record."""
    room = await open_room(shutdown_timeout=SOON)
    box = room.inbox(lease_seconds=0.05, max_attempts=1, poll_interval=SOON)
    gate = Gate()

    @box.handler("fails")
    async def fails(message: Message[Any]) -> None:
        raise ValueError("no")

    @box.handler("typed")
    async def typed(message: Message[int]) -> None: ...

    @box.handler("garbage")
    async def garbage(message: Message[Any]) -> Any:
        return message.payload

    @box.handler("stuck")
    async def stuck(message: Message[Any]) -> None:
        await gate(message)

    box.handler("dies")(always(Outcome.DEAD.because("reason")))
    if store == "aiosqlite":

        @box.handler("tx", transactional=True)
        async def transact(message: Message[Any], tx: Any) -> None:
            await tx.execute("ROLLBACK")

    with Logged() as logged:
        for topic in ("fails", "typed", "garbage", "dies", "tx", "unknown"):
            await put(box, topic, topic=topic, payload={"card": SECRET}, headers={"h": SECRET})
            await put(box, topic, topic=topic, payload={"card": SECRET})
        await soon(room.drain())
        await put(box, "stuck", topic="stuck", payload=SECRET)
        await room.start()
        await gate.reached()
        await box.mark_dead("stuck", "s")
        await logged.says("lease lost while handling")
        sabotage = Sabotage(room, "exchange", "settle", "renew")
        await sabotage.felt()
        await put(box, "more", topic="fails", payload=SECRET)
        await logged.says("the store failed")
        await soon(room.stop())
    assert SECRET not in caplog.text
    assert len(logged.records) > 20
    for record in logged.records:
        assert f"store={room.store.name}" in record.message, record.message
        assert "box=inbox:inbox" in record.message, record.message
    for id_ in ("fails", "typed", "garbage", "dies"):
        assert SECRET not in ((await box.get(id_)).last_error or "")


async def test_quiet_when_nothing_is_wrong(room: Postroom) -> None:
    """No warning, no error, in a life without trouble."""
    box = room.inbox(poll_interval=HOUR)
    done = asyncio.Event()

    @box.handler("t")
    async def handle(message: Message[str]) -> None:
        if message.message_id == "199":
            done.set()

    with Logged() as logged:
        await room.start()
        await put(box, *range(200))
        await soon(done.wait())
        await room.stop()
    assert [record.message for record in logged.records if record.levelno >= logging.WARNING] == []
