"""The server is killed: what it said is stored is there again, as far as its settings promise, and the box is whole."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis
from tools.servers.redis import Fsync, RedisServer

from tests.redis_chaos.crew import (
    BOX_KEY,
    CHAOS,
    Acked,
    Crew,
    check_handled,
    check_order,
    check_whole,
    crew_on,
    given_twice,
    lost,
)
from tests.redis_invariants import Snapshot, complaints

ALLOWED = {"always": 0.0, "everysec": 2.0}
"""Seconds before a crash of which acknowledged writes may be lost."""


@pytest.mark.parametrize("fifo", [False, True], ids=["unordered", "fifo"])
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_killed_server_keeps_its_promise(
    tmp_path: Path, fsync: Fsync, fifo: bool, tell: Callable[[str], None]
) -> None:
    with RedisServer(appendonly=True, appendfsync=fsync) as server:
        with crew_on(server.url(), tmp_path, workers=2, writers=2, fifo=fifo) as crew:
            kills = []
            for _ in range(2 * CHAOS):
                crew.await_more(300)
                server.kill()
                kills.append(time.time())
                server.start()
                crew.await_more(300)
            gone = _finish(crew, server)
            for acked in gone:
                assert any(kill - ALLOWED[fsync] <= acked.when <= kill for kill in kills), acked
            if fsync == "always":
                assert gone == []
                assert given_twice(crew.claims()) == []
                if fifo:
                    check_order(crew.calls())
        tell(f"AOF {fsync}: {len(gone)} of {len(crew.acked())} acknowledged messages lost in {len(kills)} kills")


def test_snapshots_alone_lose_what_came_later(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """As Redis comes: everything since the last snapshot is gone, and what is left is whole."""
    with RedisServer() as server:
        with crew_on(server.url(), tmp_path, workers=2, writers=2) as crew:
            crew.await_more(300)
            server.query("SAVE")
            crew.await_more(300)
            server.kill()
            server.start()
            crew.await_more(300)
            gone = _finish(crew, server)
        tell(f"snapshots: {len(gone)} of {len(crew.acked())} acknowledged messages lost")


def _finish(crew: Crew, server: RedisServer) -> list[Acked]:
    crew.stop(crew.writers)
    connect = _connecting(server)
    box = crew.let_finish(connect)
    with closing(connect()) as client:
        check_whole(client, crew)
    gone = lost(crew, box)
    check_handled(crew, box)
    crew.stop(crew.workers)
    return gone


def _connecting(server: RedisServer) -> Callable[[], redis.Redis]:
    return lambda: redis.Redis.from_url(server.url())


def test_a_log_that_is_cut_anywhere_leaves_a_whole_box(tmp_path: Path) -> None:
    """A power cut ends the log in the middle of a write: a script is in it as a whole, or not at all."""
    chance = random.Random(1)
    with RedisServer(appendonly=True) as server:
        with crew_on(server.url(), tmp_path, workers=2, writers=2, fifo=True, trouble=0.1) as crew:
            crew.await_more(300)
            crew.close()
        server.kill()
        [log] = (server.data / "appendonlydir").glob("*.incr.aof")
        whole = log.read_bytes()
        sizes = []
        for _ in range(30 * CHAOS):
            log.write_bytes(whole[: chance.randint(len(whole) // 10, len(whole))])
            server.start()
            with closing(redis.Redis.from_url(server.url())) as client:
                assert complaints(client, crew.options.prefix, BOX_KEY) == []
                sizes.append(len(Snapshot.take(client, crew.options.prefix, BOX_KEY).contents))
            server.kill()
        assert len(set(sizes)) > 10  # it was cut in many places
