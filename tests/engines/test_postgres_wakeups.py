"""A put notifies the workers of other processes, also if the key of its message is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from postroom import OwnerToken, Postroom
from tests.postgres import create_database, with_driver
from tests.runtime.support import soon

PUT: dict[str, Any] = {"source": "s", "message_id": "1"}


@pytest.fixture(params=["asyncpg", "psycopg"])
async def rooms(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Postroom, Postroom]]:
    """A room that puts, and one that listens."""
    url = with_driver(create_database(), request.param)
    async with Postroom(url, deploy_schema=True) as putting, Postroom(url) as listening:
        await putting.migrate()
        assert await soon(listening.store.wait()) == frozenset(), "any box: the connection is new"
        yield putting, listening


async def test_a_key_that_was_only_seen(rooms: tuple[Postroom, Postroom]) -> None:
    inbox = rooms[0].inbox()
    assert not await inbox.already_processed("1", "s")
    assert (await inbox.enqueue("t", 1, **PUT)).is_new
    assert await soon(rooms[1].store.wait()) == {"inbox:inbox"}


async def test_a_dead_letter_that_is_revived(rooms: tuple[Postroom, Postroom]) -> None:
    inbox, owner = rooms[0].inbox(), OwnerToken.new()
    await inbox.enqueue("t", 1, **PUT)
    assert await soon(rooms[1].store.wait()) == {"inbox:inbox"}
    await soon(rooms[1].store.wait())  # each notification is repeated a moment later
    await inbox.fail(owner, await inbox.claim(owner), "bad")
    assert (await inbox.enqueue("t", 1, revive_dead=True, **PUT)).status == "revived"
    assert await soon(rooms[1].store.wait()) == {"inbox:inbox"}


async def test_a_key_whose_deduplication_window_has_passed(rooms: tuple[Postroom, Postroom]) -> None:
    outbox = rooms[0].outbox(dedup_window=timedelta(microseconds=1))
    await outbox.enqueue("t", 1, message_id="1")
    assert await soon(rooms[1].store.wait()) == {"outbox:outbox"}
    await soon(rooms[1].store.wait())
    assert (await outbox.enqueue("t", 2, message_id="1")).is_new
    assert await soon(rooms[1].store.wait()) == {"outbox:outbox"}
