"""Several processes share the stores by soft leases. Two rooms in one process stand for two processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from datetime import timedelta
from typing import Any

import pytest

from postroom import Postroom
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, Looks, becomes, planned
from tests.runtime.support import Gate, put, soon


def held(room: Any) -> set[str]:
    """The stores that a room attends."""
    now = asyncio.get_running_loop().time()
    return {key for key, entry in room._source.schedule._entries.items() if entry.held_until > now}


def working(open_room: OpenRoom, urls: dict[str, str], handled: Handled, **options: Any) -> Any:
    room = open_room(urls, **options)
    room.inbox().handler("t")(handled)
    return room


async def test_one_process_attends_a_store(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks
) -> None:
    first, second = (working(open_room, urls, handled, notify=False) for _ in range(2))
    async with first:
        await looks.until(*KEYS)
        async with second:
            await looks.until(*KEYS, count=2)
            assert held(first) == set(KEYS)
            assert held(second) == set()
            for key in KEYS:
                assert looks.at(key)[1].free_in is not None
            pauses = await planned(second)
            assert all(200 < pause < 260 for pause in pauses.values()), "it looks when the lease ends"


@pytest.mark.usefixtures("quick")
async def test_a_new_process_gets_a_share(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the leases end, the process that attends fewer stores asks first. So each has fewer connections."""
    monkeypatch.setattr("postroom._many.store_schedule.LEASE", timedelta(seconds=0.4))
    monkeypatch.setattr("postroom._many.store_schedule.HANDOVER_SECONDS", 0.4)
    first, second = (working(open_room, urls, handled, notify=False) for _ in range(2))
    async with first:
        await looks.until(*KEYS)
        assert held(first) == set(KEYS)
        async with second:
            await becomes(lambda: held(second) and len(held(first)) < 3)
        await becomes(lambda: held(first) == set(KEYS))  # the other has ended


@pytest.mark.usefixtures("quick")
async def test_another_process_helps(open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks) -> None:
    """The process that attends the store is busy: its handler does not end."""
    busy, helper, gate = open_room(urls, notify=False), working(open_room, urls, handled), Gate()
    busy.inbox(batch_size=1).handler("t")(gate)
    async with busy:
        await put(busy.router.inbox("acme"), "busy")
        await gate.reached(1)
        await looks.until(*KEYS)
        async with helper:
            await looks.until(*KEYS, count=2)
            await put(busy.router.inbox("bolt"), "waits")
            helper._source.schedule.store_changed("bolt")
            await handled.until(("bolt", "waits"))
            gate.open()


CHILD = """
    import asyncio, json, sys
    from postroom import Postroom

    urls = json.loads(sys.argv[1])

    async def main():
        room = Postroom(stores=urls)

        @room.inbox().handler("t")
        async def handle(message):
            print("has", message.store, flush=True)
            await asyncio.Event().wait()

        async with room:
            while sum(bool(entry.held_until) for entry in room._source.schedule._entries.values()) < len(urls):
                await asyncio.sleep(0.01)
            print("runs", flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.usefixtures("quick")
async def test_a_process_that_dies(open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks) -> None:
    """It held the soft leases and a message. Both are free again, and nothing is lost."""
    room = open_room(urls)
    room.inbox(lease_seconds=30).handler("t")(handled)
    child = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps(urls)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert await soon(asyncio.to_thread(child.stdout.readline), 20) == "runs\n"
        await put(room.router.inbox("acme"), "taken")
        assert await soon(asyncio.to_thread(child.stdout.readline), 20) == "has acme\n"
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    async with room:
        await looks.until(*KEYS)
        assert all(looks.at(key)[0].free_in is not None for key in KEYS), "the dead process has the soft leases"
        for key in KEYS:
            await put_elsewhere(room, key)
        await handled.until(*((key, "new") for key in KEYS))
        (taken,) = [m for m in await room.router.inbox("acme").find() if m.message_id == "taken"]
        assert taken.claim is not None, "its lease has 30 seconds"
        assert (await planned(room))["acme"] < 40, "then there is a look"


async def put_elsewhere(room: Any, key: str) -> None:
    """Puts without a wake-up of this room, as another process does."""
    async with Postroom(room.router._registry.get(key).config.url) as other:
        await put(other.inbox(), "new")
    room._source.schedule.store_changed(key)
