"""What one call may contain: headers, and messages of one `enqueue_many`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, DuplicateMessage, NewMessage, Postroom
from postroom import sync as postroom_sync
from postroom._stores.memory import SyncMemoryStore
from postroom.testing import Events
from tests.redis import new_prefix, server
from tests.support import open_room, settled

MOST = 65_536


class TestHeaders:
    @pytest.fixture
    def outbox(self) -> Any:
        return postroom_sync.Postroom("memory://").outbox()

    @pytest.mark.parametrize(
        "headers",
        [
            {str(number): "" for number in range(100)},
            {"x" * 255: ""},
            {"": "x" * MOST},
            {"ä": "x" * (MOST - 2)},
        ],
        ids=["a hundred", "a long name", "a long value", "bytes count"],
    )
    def test_up_to_the_limit(self, outbox: Any, headers: dict[str, str]) -> None:
        receipt = outbox.enqueue("t", "x", headers=headers)
        assert outbox.find()[0].headers == headers
        assert receipt.is_new

    @pytest.mark.parametrize(
        ("headers", "error"),
        [
            ({str(number): "" for number in range(101)}, "there are 101 headers; at most 100 are allowed"),
            ({"x" * 256: ""}, "the name of a header has 256 characters; at most 255 are allowed"),
            ({"a": "x" * MOST}, "the headers have 65537 bytes; at most 65536 are allowed"),
            ({"a": "ä" * (MOST // 2)}, "the headers have 65537 bytes"),
        ],
        ids=["too many", "a longer name", "a longer value", "bytes count"],
    )
    def test_beyond_it(self, outbox: Any, headers: dict[str, str], error: str) -> None:
        with pytest.raises(ArgumentValueError, match=error):
            outbox.enqueue("t", "x", headers=headers)
        with pytest.raises(ArgumentValueError, match=error):
            outbox.enqueue_many([NewMessage("t", "x", headers=headers)])
        assert outbox.find() == []


def numbered(start: int, stop: int, **options: Any) -> list[NewMessage]:
    return [NewMessage("t", {"n": n}, message_id=str(n), **options) for n in range(start, stop)]


def endless() -> Iterator[NewMessage]:
    return (NewMessage("t", {"n": n}) for n in count())


async def test_an_endless_list_ends_at_the_limit(room: Any) -> None:
    with pytest.raises(ArgumentValueError, match="more than 100,000 items, the most that enqueue_many takes"):
        await settled(room.outbox().enqueue_many(endless()))
    assert await settled(room.outbox().find()) == []


@pytest.mark.parametrize("size", [0, 10_001, "5", None])
def test_the_size_of_a_step_is_checked(size: Any) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match="write_batch_size"):
        postroom_sync.Postroom("memory://").outbox(write_batch_size=size)


STORES = ["memory", "memory-sync", "sqlite3", "aiosqlite", "redis", "redis-sync"]


@pytest.fixture(params=STORES)
async def watched(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Returns a room, and the number of messages in each put."""
    events = Events()
    store = str(request.param)
    if store.startswith("redis"):
        kind: Any = postroom_sync.Postroom if store == "redis-sync" else Postroom
        room = kind(server(), prefix=new_prefix(), observers=[events])
    else:
        room = await open_room(store, tmp_path, observers=[events])
    yield room, events
    await settled(room.close())


async def test_a_store_without_transactions_writes_in_steps(watched: tuple[Any, Events]) -> None:
    room, events = watched
    outbox = room.outbox(write_batch_size=10)
    receipts = await settled(outbox.enqueue_many(numbered(0, 25)))
    sizes = [len(event.given) for event in events.of("put")]
    assert sizes == ([25] if room.features.transactional else [10, 10, 5])
    assert [receipt.is_new for receipt in receipts] == [True] * 25
    found = await settled(outbox.find())
    assert [message.payload["n"] for message in found] == list(range(25))
    assert [message.id for message in found] == [receipt.id for receipt in receipts]


async def test_duplicates_are_raised_after_all_steps(watched: tuple[Any, Events]) -> None:
    room, _ = watched
    outbox = room.outbox(write_batch_size=10)
    await settled(outbox.enqueue("t", {"n": 3}, message_id="3"))
    with pytest.raises(DuplicateMessage) as raised:
        await settled(outbox.enqueue_many(numbered(0, 25, on_duplicate="raise")))
    assert len(raised.value.receipts) == 1
    assert len(await settled(outbox.find())) == 25


class Failing(SyncMemoryStore):
    """Fails at the second put."""

    puts = 0

    def put(self, *args: Any, **options: Any) -> Any:
        self.puts += 1
        if self.puts == 2:
            raise ConnectionError("away")
        return super().put(*args, **options)


def test_an_error_says_what_is_stored() -> None:
    outbox = postroom_sync.Postroom(store=Failing()).outbox(write_batch_size=10)
    with pytest.raises(ConnectionError, match="away") as raised:
        outbox.enqueue_many(numbered(0, 25))
    assert raised.value.__notes__ == ["the first 10 of 25 messages are stored"]
    assert [message.message_id for message in outbox.find()] == [str(n) for n in range(10)]
