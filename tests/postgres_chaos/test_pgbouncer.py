"""Behind PgBouncer in transaction mode, with two connections to the server for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.pgbouncer import PgBouncer
from tools.servers.postgres import PostgresServer

from postroom import NewMessage, Postroom, State
from postroom.sync import Postroom as SyncPostroom
from tests.postgres import with_driver
from tests.postgres_chaos.feed import feeding
from tests.postgres_chaos.test_crashes import FED, WORK, check_promises
from tests.postgres_chaos.workers import workers_on

SERVER_CONNECTIONS = 2


@pytest.fixture
def bouncer(server: PostgresServer) -> Iterator[PgBouncer]:
    try:
        made = PgBouncer(server, settings={"default_pool_size": str(SERVER_CONNECTIONS), "max_client_conn": "200"})
    except ServerMissing as reason:
        missing(reason)
    with made:
        yield made


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_every_verb_works(bouncer: PgBouncer, database: str, driver: str) -> None:
    url = with_driver(f"{bouncer.url(database)}?pgbouncer=true", driver)
    async with Postroom(url) as room:
        assert not room.features.notify
        owner, lines, box = uuid4(), room.inbox("lines", order="fifo"), room.outbox("plain")
        # More tasks than connections, so that a session never stays with one of them.
        await asyncio.gather(*(box.enqueue("t", n, message_id=str(n)) for n in range(30)))
        await asyncio.gather(*(lines.enqueue("t", n, source="s", message_id=str(n), group="g") for n in range(6)))
        now = datetime.now(UTC)
        await box.enqueue_many(
            [NewMessage("t", 1, collapse_key="k", expires=now + timedelta(days=1)) for _ in range(3)]
        )
        batches = await asyncio.gather(*(box.claim(uuid4(), 60, 8) for _ in range(5)))
        claimed = [message for batch in batches for message in batch]
        assert len(claimed) == len({message.id for message in claimed}) == 31
        for batch in batches:
            if batch:
                assert batch[0].claim is not None
                assert await box.renew(batch[0].claim.owner, batch) == [True] * len(batch)
                assert await box.ack(batch[0].claim.owner, batch) == [True] * len(batch)
        for _ in range(3):
            [first, second] = await lines.claim(owner, 60, 2)
            assert await lines.abandon(owner, [first], delay=timedelta(microseconds=1)) == [True]
            assert await lines.ack(owner, [second]) == [False]  # its batch has ended
            [again] = await lines.claim(owner, 60, 1)
            assert again.id == first.id
            assert await lines.fail(owner, [again], "no") == [True]
        assert len(await lines.replay()) == 3
        assert sum(await lines.reap()) == 0
        assert (await lines.counts())[State.WAITING] == 6
        assert await box.purge("done", older_than=timedelta()) == 33
        async with room.store.transaction() as tx:
            await box.enqueue("t", 1, message_id="in a transaction", tx=tx)
        assert (await box.counts())[State.WAITING] == 1
    with SyncPostroom(f"{bouncer.url(database)}?pgbouncer=true") as sync_room:
        assert [message.message_id for message in sync_room.outbox("plain").claim(uuid4())] == ["in a transaction"]


async def test_workers_of_both_drivers_share_two_connections(
    bouncer: PgBouncer, server: PostgresServer, database: str, tmp_path: Path
) -> None:
    url = f"{bouncer.url(database)}?pgbouncer=true"
    (tmp_path / "other").mkdir()
    with (
        workers_on(with_driver(url, "asyncpg"), tmp_path, 1, **WORK) as workers,
        workers_on(with_driver(url, "psycopg"), tmp_path / "other", 1, **WORK) as other,
    ):
        async with feeding(url, *FED) as feed:
            await feed.more(15)
            await feed.until_all_claim(workers, other)
            sessions = server.query(
                "SELECT query FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'", database
            )
        assert 0 < len(sessions) <= SERVER_CONNECTIONS
        assert not [query for (query,) in sessions if query.upper().startswith("LISTEN")]
        await check_promises(server.url(database), workers, feed)
        workers.stop()
        other.stop()
