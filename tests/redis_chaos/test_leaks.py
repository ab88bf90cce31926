"""What is left when everything was handled and purged: nothing but what layout.md says.

100,000 messages; POSTROOM_CHAOS=10 makes it a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from tools.servers.redis import RedisServer

from postroom import Message, NewMessage, Outcome, Postroom
from postroom._stores.redis.layout import attendant_key, box_keys
from tests.redis import open_at
from tests.redis_chaos.workload import CHAOS, new_prefix
from tests.redis_invariants import complaints, shared_keys

MESSAGES = 100_000 * CHAOS
PIECE = 5_000
BOXES = ("inbox:free", "inbox:lines")
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer({"save": ""}) as started:
        yield started


async def test_nothing_is_left(server: RedisServer) -> None:
    prefix = new_prefix()
    async with Postroom(store=open_at(server.url(), "async", prefix=prefix)) as room:
        free = room.inbox("free", batch_size=500)
        lines = room.inbox("lines", order="fifo", batch_size=500)
        for box in (free, lines):
            box.handler("t", batch=500)(_outcomes)
        with redis.Redis.from_url(server.url()) as client:
            for first in range(0, MESSAGES, PIECE):
                await free.enqueue_many([_message(number) for number in range(first, first + PIECE * 9 // 10)])
                await lines.enqueue_many([_message(number) for number in range(first + PIECE * 9 // 10, first + PIECE)])
                for number in range(first, first + PIECE, 500):
                    await free.already_processed(source="seen", message_id=str(number))
                await room.drain()
            for box, key in zip((free, lines), BOXES, strict=True):
                assert complaints(client, prefix, key) == []
                for state in ("done", "dead", "seen"):
                    await box.purge(state, older_than=timedelta())
                assert complaints(client, prefix, key) == []
            kept = {box_keys(prefix, key)[0].decode() for key in BOXES} | shared_keys(prefix)
            kept.discard(attendant_key(prefix))  # a room with one store attends nothing
            assert {key.decode() for key in client.scan_iter(count=10_000)} == kept


def _message(number: int) -> NewMessage:
    """Of many groups and some collapse keys; now and then one that two sources send."""
    return NewMessage(
        "t",
        {"number": number},
        source=f"s{number % 2}",
        message_id=str(number // 2 if number % 10 < 2 else number),
        group=f"g{number % 1000}",
        collapse_key=f"c{number % 97}" if number % 50 == 7 else None,
        expires=LATER if number % 20 == 3 else None,
    )


async def _outcomes(messages: list[Message[Any]]) -> list[Outcome]:
    """One in a hundred dies."""
    return [Outcome.DEAD.because("bad") if each.payload["number"] % 100 == 9 else Outcome.SUCCESS for each in messages]
