"""An outcome that the database refuses delays no other outcome and no claim."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom import Inbox, Postroom, State
from tests.postgres import create_database
from tests.scenarios.support import SOON, eventually, put

POSTGRES_TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT FROM postroom_message m WHERE m.id = NEW.id AND m.message_id = '3') THEN
        RAISE EXCEPTION 'refused';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON postroom_ledger FOR EACH ROW EXECUTE FUNCTION refuse()
"""
SQLITE_TRIGGER = """
CREATE TRIGGER refuse BEFORE INSERT ON postroom_ledger
WHEN EXISTS (SELECT 1 FROM postroom_message m WHERE m.id = NEW.id AND m.message_id = '3')
BEGIN SELECT raise(ABORT, 'refused'); END
"""


@pytest.fixture(params=["postgres", "sqlite"])
async def room(request: Any, tmp_path: Path) -> Postroom:
    """A room whose database refuses to complete the message 3."""
    if request.param == "postgres":
        room = Postroom(url := create_database(), shutdown_timeout=timedelta(seconds=0.5))
        await room.migrate()
        connection = await asyncpg.connect(url)
        await connection.execute(POSTGRES_TRIGGER)
        await connection.close()
    else:
        room = Postroom(f"sqlite:///{tmp_path}/refused.db", shutdown_timeout=timedelta(seconds=0.5))
        await room.migrate()
        with sqlite3.connect(tmp_path / "refused.db") as file:
            file.execute(SQLITE_TRIGGER)
    return room


@pytest.fixture(params=["none", "fifo"])
def inbox(room: Postroom, request: Any) -> Inbox:
    inbox = room.inbox(order=request.param, batch_size=5, poll_interval=SOON, max_poll_interval=SOON)
    inbox.handler("t")(lambda _: None)
    return inbox


async def _others_are_done(room: Postroom, inbox: Inbox, count: int) -> None:
    async def done() -> bool:
        return (await inbox.counts())[State.DONE] == count

    assert await eventually(done, 15), f"{await inbox.counts()}, {room.health()}"
    assert (await inbox.get("3")).state is State.CLAIMED


async def test_one_refused_completion_among_many(room: Postroom, inbox: Inbox) -> None:
    for number in range(20):
        await put(inbox, number, group=f"g{number}")
    async with room:
        await _others_are_done(room, inbox, 19)


async def test_messages_that_come_after_a_refusal(
    room: Postroom, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker claims them, although the refused outcome is the only one that waits."""
    await put(inbox, 3, group="g3")
    async with room:

        async def is_refused() -> bool:
            return "refused" in caplog.text

        assert await eventually(is_refused, 15)
        for number in (1, 2, *range(4, 20)):
            await put(inbox, number, group=f"g{number}")
        await _others_are_done(room, inbox, 18)


async def test_a_stopped_worker_releases_a_message_whose_completion_is_refused(room: Postroom, inbox: Inbox) -> None:
    await put(inbox, 1, group="g1")
    await put(inbox, 3, group="g3")
    await room.start()
    await _others_are_done(room, inbox, 1)
    await room.stop()
    assert (await inbox.get("3")).state is State.WAITING
    await room.close()
