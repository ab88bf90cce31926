"""A room with a hub: other processes learn at once of messages. Two rooms stand for two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Postroom
from postroom.sync import Postroom as SyncPostroom
from tests import redis
from tests.many.conftest import OpenRoom
from tests.many.stores import KEYS, Handled, Looks, becomes
from tests.postgres import shared_database, with_driver
from tests.runtime.support import Logged, put

HUBS: dict[str, Callable[[], str]] = {
    "asyncpg-hub": lambda: with_driver(shared_database(), "asyncpg"),
    "psycopg-hub": lambda: with_driver(shared_database(), "psycopg"),
    "redis-hub": redis.server,
}


@pytest.fixture(params=HUBS)
def hub(request: pytest.FixtureRequest) -> str:
    return HUBS[request.param]()


async def listening(room: Postroom, looks: Looks) -> None:
    """Waits until the room is connected to the hub and has looked at all stores."""
    assert room._hubs is not None
    listener: Any = room._hubs.get()._channel._listener  # type: ignore[attr-defined]
    await becomes(lambda: getattr(listener, "_checkout", None) or getattr(listener, "_subscribed", None))
    await looks.until(*KEYS)


async def test_a_put_of_another_process_is_handled_at_once(
    open_room: OpenRoom, urls: dict[str, str], hub: str, handled: Handled, looks: Looks, quick: None
) -> None:
    """Hints are all there is: no probe, and no look without a reason."""
    room = open_room(urls, hub=hub, notify=False, look_interval=None)
    room.inbox().handler("t")(handled)
    other = open_room(urls, hub=hub)
    async with room:
        await listening(room, looks)
        for number in range(3):
            for key in KEYS:
                await put(other.router.inbox(key), number)
            await handled.until(*((key, str(number)) for key in KEYS), seconds=5)
        async with other.router.store("bolt").transaction() as tx:
            await other.router.inbox("bolt").enqueue("t", "x", source="s", message_id="in-tx", tx=tx)
        await handled.until(("bolt", "in-tx"), seconds=5)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_without_a_hub_it_is_not_found(
    open_room: OpenRoom, urls: dict[str, str], handled: Handled, looks: Looks, quick: None
) -> None:
    """The other side of the test above."""
    room = open_room(urls, notify=False, look_interval=None)
    room.inbox().handler("t")(handled)
    other = open_room(urls)
    async with room:
        await looks.until(*KEYS)
        await put(other.router.inbox("acme"), "1")
        with pytest.raises(TimeoutError):
            await handled.until(("acme", "1"), seconds=0.5)


async def test_a_hub_that_is_away(open_room: OpenRoom, urls: dict[str, str], handled: Handled) -> None:
    """Neither puts nor workers of the same process depend on it."""
    room = open_room(urls, hub="redis://127.0.0.1:1")
    room.inbox().handler("t")(handled)
    with Logged() as logged:
        async with room:
            await put(room.router.inbox("acme"), "1")
            await handled.until(("acme", "1"))
            await logged.says("server=hub gives no hints")
    assert len(logged.saying("the hub fails")) <= 1


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_a_lost_connection_costs_no_message(
    open_room: OpenRoom,
    urls: dict[str, str],
    handled: Handled,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
    quick: None,
) -> None:
    """After it has connected again, it looks at all stores."""
    monkeypatch.setattr("postroom._many.probing.RETRY_SECONDS", (0.01, 0.01))
    hub = with_driver(shared_database(), "asyncpg")
    room = open_room(urls, hub=hub, notify=False, look_interval=None)
    room.inbox().handler("t")(handled)
    without_hub, with_hub = open_room(urls), open_room(urls, hub=hub)
    async with room:
        await listening(room, looks)
        await put(with_hub.router.inbox("acme"), "published")
        await handled.until(("acme", "published"))
        await put(without_hub.router.inbox("acme"), "unpublished")
        assert room._hubs is not None
        listener = room._hubs.get()._channel._listener  # type: ignore[attr-defined]
        listener._checkout.connection.terminate()
        await handled.until(("acme", "unpublished"))


async def test_a_closed_room_publishes_nothing(open_room: OpenRoom, urls: dict[str, str], hub: str) -> None:
    room = open_room(urls, hub=hub)
    await put(room.router.inbox("acme"), "1")
    await room.close()
    await room.close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"hub": "sqlite:///hub.db", "stores": {"a": "memory://"}}, ArgumentValueError, "cannot be a hub"),
        ({"hub": 7, "stores": {"a": "memory://"}}, ArgumentTypeError, "hub must be a URL"),
        ({"hub": "redis://host", "url": "memory://"}, ArgumentTypeError, "hub needs stores"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Postroom(**options)
    with pytest.raises(TypeError):
        SyncPostroom(**options)
