"""An outcome that the database refuses holds up no other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from postroom import Postroom, State
from tests.postgres import create_database
from tests.scenarios.support import SOON, eventually, put

REFUSES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT FROM postroom_message m WHERE m.id = NEW.id AND m.message_id = '3') THEN
        RAISE EXCEPTION 'refused';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON postroom_ledger FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.mark.parametrize("order", ["none", "fifo"])
async def test_a_trigger_that_refuses_one_completion(order: Any) -> None:
    url = create_database()
    room = Postroom(url, shutdown_timeout=timedelta(seconds=0.5))
    await room.migrate()
    connection = await asyncpg.connect(url)
    await connection.execute(REFUSES)
    await connection.close()
    inbox = room.inbox(order=order, batch_size=5, poll_interval=SOON, max_poll_interval=SOON)
    inbox.handler("t")(lambda _: None)
    for number in range(20):
        await put(inbox, number, group=f"g{number}")
    async with room:

        async def all_others_are_done() -> bool:
            return (await inbox.counts())[State.DONE] == 19

        assert await eventually(all_others_are_done, 15), f"{await inbox.counts()}, {room.health()}"
        assert (await inbox.get("3")).state is State.CLAIMED
