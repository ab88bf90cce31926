"""What the scenarios share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from postroom import Message, NewMessage, OwnerToken, State

STORES = ("memory", "aiosqlite", "asyncpg", "redis")
POSTGRES = ("asyncpg", "psycopg")
on_postgres = pytest.mark.parametrize("store", POSTGRES)

LEASE = 30.0
"""Seconds, by a clock that the test moves."""
SOON = timedelta(milliseconds=20)


def owner() -> UUID:
    return OwnerToken.new()


async def put(box: Any, *ids: Any, topic: str = "t", **options: Any) -> None:
    """Messages of one source, with these ids, in one call."""
    await box.enqueue_many([NewMessage(topic, "x", source="s", message_id=str(id_), **options) for id_ in ids])


def ids(messages: list[Message[Any]]) -> list[str]:
    return [message.message_id for message in messages]


async def states(box: Any) -> dict[str, State]:
    return {message.message_id: message.state for message in await box.find(limit=10_000)}


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 4) -> bool:
    """Whether the condition becomes true in time; each look is a question to the store."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - the state of a store has no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


async def becomes(box: Any, message_id: Any, *wanted: State, seconds: float = 4) -> bool:
    """Whether a message comes to one of these states in time."""

    async def is_there() -> bool:
        return (await box.get(str(message_id))).state in wanted

    return await eventually(is_there, seconds)
