"""Rooms on a service: guards in all modes that the wire allows, inboxes that accept messages, and what is refused."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Guard, GuardBusy, GuardKey, NewMessage, Postroom, sync
from postroom.errors import ExtraMissing, FeatureMissing, GuardConflict, RoomClosed, ServiceRefused
from postroom.service.settings import Settings
from postroom.spi import State
from tests.client.serving import TOKEN, serving
from tests.service.process import service_process


def database(settings: Settings) -> Postroom:
    """A room on the database of the service."""
    return Postroom(settings.url, prefix=settings.prefix)


# -- guards --------------------------------------------------------------------------------------------------------


@pytest.mark.req("KOAN-033", "KOAN-034")
async def test_the_guard_of_a_service_is_used_like_that_of_a_database(room: Postroom, settings: Settings) -> None:
    """The handler is the same; the URL of the room chooses the provider."""
    here = database(settings)
    for provider, other, name in ((room, here, "over HTTP"), (here, room, "direct")):
        ran: list[GuardKey] = []
        key = GuardKey("rabbit", "shop", "billing", name)
        guard = provider.guard("billing", keep_results=True, scope="message")
        charge = _charge(guard, ran, name)
        assert [await charge(key), await charge(key)] == ["paid", "paid"]
        assert ran == [key]
        assert await other.guard("billing", keep_results=True, scope="message").is_processed(key)
    await here.close()


def _charge(guard: Guard, ran: list[GuardKey], name: str) -> Callable[[GuardKey], Awaitable[str | None]]:
    @guard.once("key", handler=name)
    async def charge(key: GuardKey) -> str:
        ran.append(key)
        return "paid"

    return charge


@pytest.mark.req("KOAN-033")
def test_a_guard_of_sync_code(sync_room: sync.Postroom) -> None:
    ran: list[str] = []

    @sync_room.guard("billing", keep_results=True).once("key")
    def charge(key: str) -> dict[str, str]:
        ran.append(key)
        return {"paid": key}

    assert [charge("a"), charge("a"), charge("b")] == [{"paid": "a"}, {"paid": "a"}, {"paid": "b"}]
    assert ran == ["a", "b"]


async def test_busy_is_not_processed(room: Postroom) -> None:
    guard = room.guard("billing")
    begun = await guard.try_begin("a", lease_seconds=30)
    with pytest.raises(GuardBusy) as raised:
        async with guard.run("a"):
            pytest.fail("another caller has the key")
    assert raised.value.until is not None
    assert not await guard.is_processed("a")
    assert await guard.renew(begun, 60)
    assert await guard.release(begun)
    async with guard.run("a"):
        pass
    assert await guard.is_processed("a")


async def test_mark_before_lists_what_never_returned(room: Postroom) -> None:
    guard = room.guard("billing", mode="mark_before", scope="message")
    await guard.try_begin("crashed")
    with pytest.raises(ZeroDivisionError):
        async with guard.run("failed"):
            raise ZeroDivisionError
    assert [record.message_id for record in await guard.unfinished()] == ["crashed"]
    assert [record.message_id for record in await guard.dead_letters()] == ["failed"]
    assert [key.message_id for key in await guard.replay()] == ["failed"]
    assert (await guard.try_begin("failed")).status == "acquired"
    assert (await guard.counts())[State.CLAIMED] == 2


async def test_mark_after(room: Postroom) -> None:
    ran: list[str] = []

    @room.guard("billing", mode="mark_after").once("key")
    async def charge(key: str) -> None:
        ran.append(key)

    await charge("a")
    await charge("a")
    assert ran == ["a"]


async def test_another_content_is_a_conflict(room: Postroom) -> None:
    guard = room.guard("billing")
    await guard.mark_processed(await guard.try_begin("a", hash=b"one"))
    with pytest.raises(GuardConflict):
        async with guard.run("a", hash=b"two"):
            pytest.fail("this is another message")


@pytest.mark.req("KOAN-037")
async def test_callers_of_the_plain_routes_share_the_guard_of_the_service(room: Postroom, service: str) -> None:
    """A program in another language, and a client with a guard of the same name, exclude each other."""
    guard = room.guard("http", scope="message")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=service, headers=headers) as curl:
        begun = (await curl.post("/v1/inbox/try-begin", json={"key": "a"})).json()
        assert (await guard.try_begin("a")).status == "busy"
        mark = {"key": "a", "leaseId": begun["leaseId"], "result": [1]}
        assert (await curl.post("/v1/inbox/mark-processed", json=mark)).json() == {"status": "Processed"}
        assert (await guard.try_begin("a")).result == [1]


async def test_processed_keys_go_after_their_retention(room: Postroom, settings: Settings) -> None:
    """A running room cleans its guards over the wire; on every store, by a purge."""
    guard = room.guard("billing", retention=timedelta(), cleanup_interval=timedelta(milliseconds=20))
    kept = room.guard("kept", retention=timedelta(days=7), cleanup_interval=timedelta(milliseconds=20))
    for each in (guard, kept):
        assert await each.mark_processed("old")
    async with room, asyncio.timeout(30):
        while await guard.is_processed("old"):
            pass
    again = Postroom(settings.url, prefix=settings.prefix)
    assert await again.guard("kept").is_processed("old")
    await again.close()


async def test_a_room_of_a_service_that_runs_is_ready_and_logs_no_error(
    room: Postroom, caplog: pytest.LogCaptureFixture
) -> None:
    room.inbox("orders")
    room.guard("billing")
    async with room:
        assert await room.is_ready()
        await room.cleanup("billing")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    with pytest.raises(RoomClosed):
        await room.guard("billing").try_begin("a")


# -- inboxes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [{"id": 1, "é": [1.5, None]}, "text", "", b"\x00\xff", [1], UUID(int=7), 12345678901234567890123, "{}"]
)
async def test_a_payload_arrives_as_it_was_sent(room: Postroom, settings: Settings, payload: Any) -> None:
    here = database(settings)
    await room.inbox("orders").enqueue("t", payload, source="shop", message_id="over HTTP")
    await here.inbox("orders").enqueue("t", payload, source="shop", message_id="direct")
    over_http, direct = await here.inbox("orders").find()
    assert (over_http.payload, over_http.format) == (direct.payload, direct.format)
    await here.close()


async def test_fields_of_a_message_arrive(room: Postroom, settings: Settings) -> None:
    here = database(settings)
    message = NewMessage(
        "order.placed",
        {"id": 1},
        source="shop",
        message_id="1",
        correlation_id="c",
        headers={"h": "é"},
        hash=b"\x01\x02",
        hash_algorithm="md5",
        on_conflict="reject",
    )
    receipts = [
        *await room.inbox("orders").enqueue_many(
            [message, NewMessage("order.placed", {}, source="shop", message_id="2")]
        ),
        *await room.inbox("orders").enqueue_many([message]),
    ]
    assert [receipt.status for receipt in receipts] == ["new", "new", "duplicate"]
    first, second = await here.inbox("orders").find()
    assert [receipt.id for receipt in receipts] == [first.id, second.id, first.id]
    assert (first.correlation_id, first.headers, first.hash) == ("c", {"h": "é"}, b"\x01\x02")
    other = NewMessage(
        "order.placed", {}, source="shop", message_id="1", hash=b"3", hash_algorithm="md5", on_conflict="reject"
    )
    assert [receipt.status for receipt in await room.inbox("orders").enqueue_many([other])] == ["rejected"]
    await here.close()


async def test_a_fifo_inbox_is_refused_for_good(room: Postroom, settings: Settings) -> None:
    here = database(settings)
    await here.inbox("lines", order="fifo").enqueue("t", {}, source="shop", message_id="1", group="g")
    await here.close()
    with pytest.raises(ServiceRefused) as raised:
        await room.inbox("lines").enqueue("t", {}, source="shop", message_id="2", group="g")
    assert raised.value.status == 400


def test_sync_code_enqueues(sync_room: sync.Postroom) -> None:
    receipt = sync_room.inbox("a/b ..").enqueue("t", {"id": 1}, source="shop", message_id="1")
    assert receipt.is_new


# -- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.req("KOAN-034")
async def test_what_the_wire_lacks_is_refused_at_configuration() -> None:
    room = Postroom("http://127.0.0.1:1")
    with pytest.raises(FeatureMissing, match="transactional"):
        room.guard("billing", mode="transactional")
    with pytest.raises(FeatureMissing, match="no outboxes"):
        room.outbox()
    with pytest.raises(FeatureMissing, match="cannot be FIFO"):
        room.inbox(order="fifo")
    with pytest.raises(FeatureMissing, match="dedup_window"):
        room.inbox("other", dedup_window=timedelta(hours=1))
    inbox = room.inbox()
    with pytest.raises(FeatureMissing, match="only accepts messages"):
        inbox.handler("t")(lambda _message: None)
    with pytest.raises(FeatureMissing, match="collapse"):
        await inbox.enqueue("t", {}, source="s", message_id="1", collapse_key="c")
    for verb in (inbox.find, inbox.counts, lambda: inbox.claim(uuid4(), 30, 1)):
        with pytest.raises(FeatureMissing, match="over HTTP"):
            await verb()
    await room.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://user:hidden@host",
        "https://hidden@host",
        "http://host?token=hidden",
        "http://host#hidden",
        "http+x://host",
        "http://host?timeout=0",
        "http://host?timeout=1e9",
        "http://host?pool_size=0",
        "http://host:port",
    ],
)
def test_a_url_that_is_not_that_of_a_service(url: str) -> None:
    with pytest.raises(ArgumentValueError) as raised:
        Postroom(url)
    assert "hidden" not in str(raised.value)


def test_bad_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("hidden token", "hidden\n", "hiddén", ""):
        with pytest.raises(ArgumentValueError) as raised:
            Postroom("http://host", token=token)
        assert "hidd" not in str(raised.value)
    with pytest.raises(ArgumentTypeError):
        Postroom("http://host", token=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="knows no token"):
        Postroom("memory://", token="hidden-token-of-shop")
    monkeypatch.setenv("POSTROOM_TOKEN", "hidden token")
    with pytest.raises(ArgumentValueError, match="POSTROOM_TOKEN"):
        Postroom("http://host")


WITHOUT_STORES = """
import sys
for name in ("aiosqlite", "asyncpg", "psycopg", "redis", "sqlalchemy", "starlette", "uvicorn", "typer"):
    sys.modules[name] = None
from postroom.sync import Postroom

with Postroom(sys.argv[1], token=sys.argv[2]) as room:
    guard = room.guard("billing")
    charge = guard.once("key")(lambda key: print(key))
    charge(key="a")
"""


@pytest.mark.req("KOAN-002")
def test_a_client_needs_no_package_of_a_store(service: str) -> None:
    command = [sys.executable, "-c", WITHOUT_STORES, service, TOKEN]
    outputs = [subprocess.run(command, capture_output=True, text=True, timeout=60, check=False) for _ in range(2)]
    assert [(done.returncode, done.stdout) for done in outputs] == [(0, "a\n"), (0, "")], outputs[0].stderr


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ExtraMissing, match=r"postroom\[client\]"):
        Postroom("http://host")


# -- a process -----------------------------------------------------------------------------------------------------


@pytest.mark.req("CEB-049", "CEB-008")
async def test_of_fifty_concurrent_begins_over_http_one_acquires(settings: Settings) -> None:
    """Two processes of the service, unless it is SQLite; each begin is a request."""
    arguments = ("--url", settings.url, "--prefix", settings.prefix, "--tokens", settings.tokens)
    with service_process(*arguments) as first, service_process(*arguments) as second:
        processes = [first] if settings.url.startswith("sqlite") else [first, second]
        rooms = [
            Postroom(process.addresses(1)[0], token=TOKEN) for process in processes for _ in range(50 // len(processes))
        ]
        begun = await asyncio.gather(*(room.guard("billing").try_begin("contended") for room in rooms))
        assert sorted(each.status for each in begun) == ["acquired", *["busy"] * 49]
        for room in rooms:
            await room.close()
        assert TOKEN not in first.log + second.log
        assert "contended" not in first.log + second.log


async def test_a_client_survives_the_restart_of_its_service(tmp_path: Path) -> None:
    settings = Settings(url=f"sqlite:///{tmp_path}/service.db")
    with service_process("--url", settings.url) as first:
        [address] = first.addresses(1)
        room = Postroom(address)
        begun = await room.guard("billing").try_begin("a")
    with service_process("--url", settings.url, port=int(address.rpartition(":")[2])) as second:
        second.addresses(1)
        assert await room.guard("billing").mark_processed(begun)
        await room.close()


def test_several_guards_of_threads_share_a_client(settings: Settings) -> None:
    with serving(settings) as url, sync.Postroom(url, token=TOKEN) as room, ThreadPoolExecutor(20) as threads:
        begun = list(threads.map(lambda _number: room.guard("billing").try_begin("one").status, range(50)))
    assert sorted(begun) == ["acquired", *["busy"] * 49]
