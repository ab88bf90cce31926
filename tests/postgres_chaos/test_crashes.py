"""Workers are killed, the server is restarted and killed, connections are cut: the promises hold."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tools.servers.postgres import PostgresServer
from tools.servers.proxy import Proxy

from tests.postgres import with_driver
from tests.postgres_chaos.feed import LINES, Feed, feeding, finish_round
from tests.postgres_chaos.workers import (
    CHAOS,
    WorkerProcesses,
    check_claims,
    check_completions,
    effects,
    let_finish,
    workers_on,
)

FED = ("exact", "free")
WORK: Any = {"boxes": ("exact", "sent", "free"), "lease": 1.0, "trouble": 0.05}


async def check_promises(url: str, workers: WorkerProcesses, feed: Feed) -> int:
    """Waits until all is handled. Returns how many effects of ordinary handlers came more than once."""
    await finish_round(url, feed, *FED)
    await asyncio.to_thread(let_finish, url, workers)
    everything, count = feed.everything, LINES * feed.length
    # 1: one completion for each key. 4: nothing is lost; all that was accepted is done.
    check_completions(url, {"exact": count, "free": count, "sent": count})
    done = effects(url)
    # 3: effects of transactional handlers are there exactly once. 5: in order, so no zombie finished newer work.
    done.check_exact("exact", everything)
    done.check_once("free", everything)
    # 2: the others were called at least once, and none before its predecessor had succeeded.
    repeated = done.check_order("sent", everything)
    for name in ("exact", "free", "sent"):
        check_claims(workers.claims(name))
    return repeated


async def test_promises_hold_when_workers_are_killed(quick_url: str, tmp_path: Path) -> None:
    url = quick_url
    chance = random.Random(1)
    with workers_on(url, tmp_path, 3, **WORK) as workers:
        async with feeding(url, *FED) as feed:
            for _ in range(4 * CHAOS):
                await feed.more(chance.randint(3, 8))
                workers.kill(chance.choice(workers.processes))
                await asyncio.to_thread(workers.start)
        await check_promises(url, workers, feed)
        workers.stop()


async def test_promises_hold_when_the_server_restarts_and_crashes(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    """Workers of both drivers go on by themselves; acknowledged puts survive kill -9."""
    url = server.url(database)
    with workers_on(with_driver(url, "asyncpg"), tmp_path, 1, **WORK) as workers:
        (tmp_path / "psycopg").mkdir()
        with workers_on(with_driver(url, "psycopg"), tmp_path / "psycopg", 1, **WORK) as other:
            async with feeding(url, *FED) as feed:
                for _ in range(CHAOS):
                    for end in (server.stop, server.kill):
                        await feed.more(5)
                        await asyncio.to_thread(end)
                        await asyncio.to_thread(server.start)
                        await feed.more(5)
                        await feed.until_all_claim(workers, other)
            assert feed.errors  # it was noticed
            await check_promises(url, workers, feed)
            workers.stop()
            other.stop()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_promises_hold_when_connections_are_cut(
    server: PostgresServer, database: str, tmp_path: Path, driver: str
) -> None:
    url = server.url(database)
    with Proxy(server.host, server.port) as proxy:
        through = with_driver(url.replace(str(server.port), str(proxy.port)), driver)
        with workers_on(through, tmp_path, 2, **WORK) as workers:
            async with feeding(through, *FED) as feed:
                for _ in range(8 * CHAOS):
                    await feed.more(2)
                    await asyncio.to_thread(proxy.cut)
            await check_promises(url, workers, feed)
            workers.stop()
