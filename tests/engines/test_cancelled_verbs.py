"""Every verb of an async box can be cancelled while it waits for the database: the caller goes on at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom import OwnerToken, Postroom, State
from postroom.sync import Postroom as SyncPostroom
from tests.postgres import clean_database, with_driver

WORKER = OwnerToken.new()
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "enqueue": lambda box, _: box.enqueue("t", "x", source="s", message_id="new"),
    "claim": lambda box, _: box.claim(WORKER),
    "ack": lambda box, held: box.ack(WORKER, held),
    "abandon": lambda box, held: box.abandon(WORKER, held),
    "release": lambda box, held: box.release(WORKER, held),
    "fail": lambda box, held: box.fail(WORKER, held, "no"),
    "renew": lambda box, held: box.renew(WORKER, held, 60),
    "reap": lambda box, _: box.reap(),
    "purge": lambda box, _: box.purge("dead", older_than=timedelta(0)),
    "replay": lambda box, _: box.replay(),
}
INBOX_VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "already_processed": lambda box, _: box.already_processed("new", "s"),
    "mark_processed": lambda box, _: box.mark_processed("new", "s"),
    "mark_dead": lambda box, _: box.mark_dead("1", "s"),
}


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "aiosqlite":
        with SyncPostroom(f"sqlite:///{tmp_path}/shop.db") as room:
            room.migrate()
        return f"sqlite:///{tmp_path}/shop.db"
    return with_driver(clean_database(), str(request.param))


@contextmanager
def locked(url: str) -> Iterator[None]:
    """No other connection can write meanwhile; on PostgreSQL, none can read."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
            connection.execute("ROLLBACK")
        return
    with psycopg.connect(url.replace("+asyncpg", "").replace("+psycopg", "")) as connection:
        connection.execute("LOCK TABLE postroom_message, postroom_queue, postroom_ledger IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


CASES = [
    *(pytest.param("inbox", name, marks=pytest.mark.req("IBX-API-03")) for name in [*VERBS, *INBOX_VERBS]),
    *(pytest.param("outbox", name, marks=pytest.mark.req("OBX-API-28")) for name in VERBS),
    pytest.param("inbox", "reap", marks=pytest.mark.req("IBX-API-21"), id="inbox-reap-again"),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
async def test_a_verb_that_waits_can_be_cancelled(url: str, kind: str, name: str) -> None:
    room = Postroom(url)
    box: Any = getattr(room, kind)()
    try:
        await box.enqueue("t", "x", source="s", message_id="1")
        held = await box.claim(WORKER)
        before = await box.find()
        with locked(url):
            call = asyncio.create_task((VERBS | INBOX_VERBS)[name](box, held))
            done, _ = await asyncio.wait([call], timeout=0.1)
            assert not done, "it did not wait, so nothing is shown"
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(call, 5)
        # A thread of SQLite goes on waiting for the file, and puts of several callers are one commit: both may be done.
        if not url.startswith("sqlite") and name != "enqueue":
            assert await box.find() == before
            assert await box.ack(WORKER, held) == [True]
            assert (await box.counts())[State.DONE] == 1
        assert (await box.enqueue("t", "x", source="s", message_id="after")).is_new
    finally:
        await room.close()
