"""Rooms: how they are opened, what they keep apart, how they end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import ArgumentTypeError, ArgumentValueError, Event, FeatureMissing, OwnerToken, RoomClosed
from postroom import sync as postroom_sync
from postroom._stores.memory import MemoryStore, SyncMemoryStore
from postroom._stores.wrapper import innermost
from tests.support import settled


@pytest.mark.req("RHI-082")
async def test_a_box_is_made_once(room: Any) -> None:
    shop = room.inbox("shop", order="fifo")
    assert room.inbox("shop") is shop
    assert room.inbox("shop", order="fifo") is shop
    with pytest.raises(ArgumentValueError, match="other options"):
        room.inbox("shop", order="none")
    assert room.outbox("shop") is not shop


@pytest.mark.req("RHI-082")
async def test_boxes_are_kept_apart(room: Any) -> None:
    for box in (room.inbox("a"), room.inbox("b"), room.outbox("a")):
        receipt = await settled(box.enqueue("t", "p", source="s", message_id="m"))
        assert receipt.is_new
        assert len(await settled(box.find())) == 1


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    with pytest.raises(ArgumentTypeError, match="POSTROOM_URL"):
        postroom_sync.Postroom()
    monkeypatch.setenv("POSTROOM_URL", f"sqlite:///{tmp_path}/room.db")
    with postroom_sync.Postroom(deploy_schema=True) as room:
        assert room.outbox().enqueue("t", "p").is_new
    assert (tmp_path / "room.db").exists()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("shop.db", "not a URL"),
        ("sqlite://", "three slashes"),
        ("sqlite://shop.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///shop.db?mode=ro", "no parameters"),
        ("mongodb://x", "no store for mongodb"),
        ("memory://x", "separate memory"),
    ],
)
def test_urls_that_cannot_be_opened(url: str, what: str) -> None:
    with pytest.raises(ArgumentValueError, match=what):
        postroom_sync.Postroom(url)
    with pytest.raises(ArgumentTypeError):
        postroom.Postroom(5)  # type: ignore[arg-type]


def test_a_refused_url_is_not_repeated() -> None:
    with pytest.raises(ArgumentValueError) as caught:
        postroom.Postroom("host=db password=hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_closed_room_says_so(mode: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/room.db"
    room: Any = postroom_sync.Postroom(url) if mode == "sync" else postroom.Postroom(url)
    await settled(room.migrate())
    await settled(room.close())
    await settled(room.close())
    with pytest.raises(RoomClosed):
        await settled(room.outbox().enqueue("t", "p"))


async def test_a_store_of_ones_own() -> None:
    async with postroom.Postroom(store=MemoryStore(name="mine")) as room:
        assert repr(room.inbox()) == "<Inbox 'inbox' on mine>"
        assert await room.migrate() == []
        with pytest.raises(FeatureMissing):
            room.schema_script()
    with pytest.raises(ArgumentValueError, match="not both"):
        postroom_sync.Postroom("memory://", store=SyncMemoryStore())


@pytest.mark.req("C-40")
def test_asking_for_what_a_store_lacks_fails_at_configuration() -> None:
    store = SyncMemoryStore()
    store.features = postroom.spi.Features(durable=False, transactional=False, fifo=False)
    with pytest.raises(FeatureMissing, match="FIFO"):
        postroom_sync.Postroom(store=store).inbox(order="fifo")


@pytest.mark.parametrize("given", [{"url": "memory://"}, {"url": "sqlite:///:memory:"}, {"store": SyncMemoryStore()}])
def test_what_must_be_durable_is_not_kept_in_memory(given: Any) -> None:
    with pytest.raises(FeatureMissing, match="keeps nothing when its process ends"):
        postroom_sync.Postroom(**given, require_durable=True)


def test_a_collapse_key_needs_a_store_that_collapses() -> None:
    store = SyncMemoryStore()
    store.features = postroom.spi.Features(durable=False, transactional=False, collapse=False)
    with postroom_sync.Postroom(store=store) as room:
        with pytest.raises(FeatureMissing, match="collapse_key"):
            room.outbox().enqueue("t", "p", collapse_key="k")
        assert room.outbox().find() == []


async def test_observers_see_every_verb(room: Any) -> None:
    events: list[Event] = []

    def broken(_: Event) -> None:
        raise RuntimeError("an observer of yours")

    kind = type(room)
    watched = kind(store=innermost(room.store), observers=[broken, events.append])
    await settled(watched.outbox().enqueue("t", "p"))
    with pytest.raises(ArgumentTypeError):
        await settled(watched.outbox().claim(None))
    await settled(watched.outbox().claim(OwnerToken.new()))
    assert [(event.verb, event.box.key, event.error) for event in events] == [
        ("put", "outbox:outbox", None),
        ("claim", "outbox:outbox", None),
    ]
    assert events[0].result[0].is_new
    assert events[0].seconds > 0


@pytest.mark.req("IBX-006", "IBX-014", "IBX-105")
async def test_tasks_may_share_a_room(tmp_path: Path) -> None:
    async with postroom.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as room:
        inbox = room.inbox()
        receipts = await asyncio.gather(
            *(inbox.enqueue("t", n, source="s", message_id=str(n % 20)) for n in range(100))
        )
        assert sum(receipt.is_new for receipt in receipts) == 20
        owners = [OwnerToken.new() for _ in range(10)]
        batches = await asyncio.gather(*(inbox.claim(owner, 30, 3) for owner in owners))
        claimed = [message.id for batch in batches for message in batch]
        assert len(claimed) == len(set(claimed)) == 20


@pytest.mark.req("IBX-006", "IBX-014", "IBX-105")
@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_threads_may_share_a_room(url: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/room.db" if url == "sqlite" else url
    with postroom_sync.Postroom(url, deploy_schema=True) as room:
        inbox, claimed, new = room.inbox(), list[int](), list[bool]()

        def work() -> None:
            for number in range(25):
                new.append(inbox.enqueue("t", number, source="s", message_id=str(number)).is_new)
            owner = OwnerToken.new()
            while batch := inbox.claim(owner, 30, 2):
                claimed.extend(message.id for message in batch if inbox.ack(owner, [message]) == [True])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(new) == 25
        assert len(claimed) == len(set(claimed)) == 25


async def test_a_room_outlives_its_event_loop(tmp_path: Path) -> None:
    """A script may call asyncio.run several times with one room."""
    code = f"""
import asyncio
from postroom import Postroom
room = Postroom("sqlite:///{tmp_path}/room.db", deploy_schema=True)
print(asyncio.run(room.outbox().enqueue("t", "p")).status)
print(asyncio.run(room.outbox().enqueue("t", "p")).status)
"""
    # It does not close the room either: a script that forgets must still end.
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.returncode) == (["new", "new"], 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes can fork")
def test_a_forked_process_opens_its_own_connection(tmp_path: Path) -> None:
    with postroom_sync.Postroom(f"sqlite:///{tmp_path}/room.db", deploy_schema=True) as room:
        room.outbox().enqueue("t", "parent")
        child = os.fork()
        if child == 0:
            try:
                room.outbox().enqueue("t", "child")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert {message.payload for message in room.outbox().find()} == {"parent", "child"}
