"""The router: the boxes of one store, by its identifier."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroom import (
    ArgumentTypeError,
    ArgumentValueError,
    Claim,
    Inbox,
    Key,
    NewMessage,
    Outbox,
    Postroom,
    StoreKeyMissing,
    StoreNotFound,
    TransactionRefused,
)
from postroom.sync import Postroom as SyncPostroom
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, databases, mixed
from tests.support import settled

A_UUID = UUID("0190a8a4-8a3b-7c29-9d5e-0242ac120002")
CLAIM = Claim(1, A_UUID, 1, datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.req("IBX-085", "IBX-091", "IBX-API-26", "OBX-060", "OBX-066", "C-60")
async def test_each_store_has_its_messages(open_room: OpenRoom, urls: dict[str, str]) -> None:
    room = open_room(urls)
    for key in KEYS:
        await room.router.inbox(key).enqueue("t", key, source="s", message_id="1")
        await room.router.outbox(key).enqueue("t", key, message_id=f"out-{key}")
    for key in KEYS:
        inbox, outbox = room.router.inbox(key), room.router.outbox(key)
        assert [message.payload for message in await inbox.find()] == [key]
        assert [message.message_id for message in await outbox.find()] == [f"out-{key}"]
    # and in the database itself
    for key, url in urls.items():
        async with Postroom(url) as alone:
            assert [message.payload for message in await alone.inbox().find()] == [key]
            assert [message.message_id for message in await alone.outbox().find()] == [f"out-{key}"]


@pytest.mark.parametrize("kind", [Postroom, SyncPostroom])
@pytest.mark.req("IBX-092", "IBX-API-26", "OBX-067", "C-60")
def test_an_unknown_key(kind: Any) -> None:
    room = kind(stores={"acme": "memory://"})
    for find in (room.router.inbox, room.router.outbox, room.router.store):
        with pytest.raises(LookupError, match="no store 'nobody'") as raised:
            find("nobody")
        assert isinstance(raised.value, StoreNotFound)
        with pytest.raises(LookupError):
            find(A_UUID)
        with pytest.raises(ArgumentTypeError, match="str or a UUID"):
            find(7)
        with pytest.raises(ArgumentValueError, match="control character"):
            find("a\x1b[31mb")


@pytest.mark.parametrize("kind", [Postroom, SyncPostroom])
@pytest.mark.req("IBX-089", "IBX-123", "IBX-API-27", "OBX-064", "OBX-068", "OBX-115", "OBX-API-12", "C-60")
def test_boxes_are_cached_by_text_and_uuid(kind: Any) -> None:
    room = kind(stores={A_UUID: "memory://", "acme": "memory://"})
    router = room.router
    assert router is room.router
    assert router.inbox(A_UUID) is router.inbox(str(A_UUID)) is router.inbox(A_UUID)
    assert router.outbox(A_UUID) is router.outbox(str(A_UUID))
    assert router.store(A_UUID) is router.store(str(A_UUID))
    assert router.inbox("acme") is router.inbox("acme")
    assert router.inbox("acme") is not router.inbox(A_UUID)
    assert router.inbox("acme", "other") is not router.inbox("acme")
    assert router.store("acme").name == "acme"


async def test_the_options_are_those_of_the_room(open_room: OpenRoom, tmp_path: Path) -> None:
    room = open_room(databases("sqlite", tmp_path, ["acme"]))
    box = room.inbox("orders", order="fifo", max_attempts=3)
    assert room.router.inbox("acme", "orders").box == box.box
    await room.router.inbox("acme", "orders").enqueue("t", "x", source="s", message_id="1", group="g")


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["ack", "abandon", "release", "renew"], (A_UUID, [CLAIM])),
    **dict.fromkeys(
        ["already_processed", "is_processed", "mark_dead", "mark_processed", "mark_processing"], ("1", "s")
    ),
    **dict.fromkeys(["get_join", "join_steps", "seal_join", "cancel_join"], (A_UUID,)),
    **dict.fromkeys(["attach_message_to_join", "report_step_completed", "report_step_failed"], (A_UUID, Key("s", "1"))),
    "cancel": ([Key("s", "1")],),
    "claim": (A_UUID,),
    **dict.fromkeys(["enqueue", "enqueue_dead"], ("t", "x")),
    "enqueue_join_wait": (A_UUID, True, "t"),
    "enqueue_many": ([NewMessage("t", "x", source="s", message_id="1", group="g")],),
    "fail": (A_UUID, [CLAIM], "why"),
    "get": ("1",),
    "skip_blocked": ("g",),
    "start_join": (7, 3),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "enqueue": {"source": "s", "message_id": "1", "group": "g"},
    "enqueue_dead": {"source": "s", "message_id": "1", "error": "why"},
}
NEEDS_NO_STORE = {"start", "stop"}


def _verbs(kind: type) -> list[str]:
    names = [name for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction) if not name.startswith("_")]
    return [name for name in names if name not in NEEDS_NO_STORE]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in (Inbox, Outbox) for name in _verbs(kind)])
@pytest.mark.req("C-60")
async def test_a_verb_without_a_key_says_what_to_do(kind: type, name: str) -> None:
    room = Postroom(stores={"acme": "memory://"})
    box = room.inbox(order="fifo", on_dead="block") if kind is Inbox else room.outbox(order="fifo", on_dead="block")
    with pytest.raises(StoreKeyMissing, match=r"room\.router\.inbox\(key\)"):
        await getattr(box, name)(*ARGUMENTS.get(name, ()), **OPTIONS.get(name, {}))


async def test_a_mixed_room(open_room: OpenRoom, tmp_path: Path) -> None:
    room = open_room(mixed(tmp_path))
    for key in room.router.keys:
        receipt = await room.router.inbox(key).enqueue("t", {"n": 1}, source="s", message_id="1")
        assert receipt.status == "new"
        again = await room.router.inbox(key).enqueue("t", {"n": 1}, source="s", message_id="1")
        assert again.status == "duplicate"
        assert not await room.router.inbox(key).already_processed("1", source="s")
    assert room.router.open_stores.keys() >= {"sqlite", "memory"}


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_the_transaction_of_another_store_is_refused(engine: str, mode: str, tmp_path: Path) -> None:
    urls = databases(engine, tmp_path)
    if mode == "sync":
        urls = {key: url.replace("+asyncpg", "+psycopg") for key, url in urls.items()}
        with SyncPostroom(stores=urls) as sync_room:
            with sync_room.router.store("acme").transaction() as tx:
                with pytest.raises(TransactionRefused, match="store 'acme', this call is of store 'bolt'"):
                    sync_room.router.outbox("bolt").enqueue("t", "x", message_id="1", tx=tx)
                sync_room.router.outbox("acme").enqueue("t", "x", message_id="1", tx=tx)
            assert [len(sync_room.router.outbox(key).find()) for key in KEYS] == [1, 0, 0]
        return
    async with Postroom(stores=urls) as room:
        async with room.router.store("acme").transaction() as tx:
            with pytest.raises(TransactionRefused, match="store 'acme', this call is of store 'bolt'"):
                await room.router.outbox("bolt").enqueue("t", "x", message_id="1", tx=tx)
            await room.router.outbox("acme").enqueue("t", "x", message_id="1", tx=tx)
        assert [len(await room.router.outbox(key).find()) for key in KEYS] == [1, 0, 0]


@pytest.mark.req("IBX-085", "IBX-091", "OBX-060", "OBX-066")
def test_sync_rooms(engine: str, tmp_path: Path) -> None:
    urls = {key: url.replace("+asyncpg", "+psycopg") for key, url in databases(engine, tmp_path).items()}
    with SyncPostroom(stores=urls) as room:
        for key in KEYS:
            assert room.router.inbox(key).enqueue("t", key, source="s", message_id="1").status == "new"
        (claimed,) = room.router.inbox("bolt").claim(A_UUID, 30, 10)
        assert claimed.payload == "bolt"
        assert room.router.inbox("bolt").ack(A_UUID, [claimed]) == [True]
        assert [room.router.inbox(key).already_processed("1", source="s") for key in KEYS] == [False, True, False]
        with pytest.raises(StoreKeyMissing):
            room.inbox().find()
        with pytest.raises(StoreKeyMissing):
            room.migrate()


async def test_verbs_of_a_store(open_room: OpenRoom, engine: str, tmp_path: Path) -> None:
    urls = databases(engine, tmp_path, ["acme"])
    room = open_room(urls)
    store = room.router.store("acme")
    assert await store.migrate() == []
    assert await store.schema_version() > 0
    assert "CREATE TABLE" in store.schema_script()
    assert store.features.transactional
    await settled(store.close())
    assert room.router.open_stores == {}
    assert await store.schema_version() > 0, "it is opened again"
