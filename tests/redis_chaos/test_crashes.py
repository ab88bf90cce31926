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

from tests.redis_chaos.workload import (
    BOX_KEY,
    CHAOS,
    Acked,
    Workload,
    check_handled,
    check_order,
    check_whole,
    given_twice,
    lost,
    workload_on,
)
from tests.redis_invariants import Snapshot, complaints

ALLOWED = {"always": 0.0, "everysec": 2.0}
"""Seconds before a crash of which acknowledged writes may be lost."""


@pytest.mark.parametrize("fifo", [False, True], ids=["unordered", "fifo"])
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_killed_server_keeps_its_promise(
    tmp_path: Path, fsync: Fsync, fifo: bool, emit: Callable[[str], None]
) -> None:
    with RedisServer(appendonly=True, appendfsync=fsync) as server:
        with workload_on(server.url(), tmp_path, workers=2, writers=2, fifo=fifo) as workload:
            kills = []
            for _ in range(2 * CHAOS):
                workload.await_more(300)
                server.kill()
                kills.append(time.time())
                server.start()
                workload.await_more(300)
            gone = _finish(workload, server)
            for acked in gone:
                assert any(kill - ALLOWED[fsync] <= acked.when <= kill for kill in kills), acked
            if fsync == "always":
                assert gone == []
                assert given_twice(workload.claims()) == []
                if fifo:
                    check_order(workload.calls())
        emit(f"AOF {fsync}: {len(gone)} of {len(workload.acked())} acknowledged messages lost in {len(kills)} kills")


def test_snapshots_alone_lose_what_came_later(tmp_path: Path, emit: Callable[[str], None]) -> None:
    """As Redis comes: everything since the last snapshot is gone, and what is left is whole."""
    with RedisServer() as server:
        with workload_on(server.url(), tmp_path, workers=2, writers=2) as workload:
            workload.await_more(300)
            server.query("SAVE")
            workload.await_more(300)
            server.kill()
            server.start()
            workload.await_more(300)
            gone = _finish(workload, server)
        emit(f"snapshots: {len(gone)} of {len(workload.acked())} acknowledged messages lost")


def _finish(workload: Workload, server: RedisServer) -> list[Acked]:
    workload.stop(workload.writers)
    connect = _connecting(server)
    box = workload.let_finish(connect)
    with closing(connect()) as client:
        check_whole(client, workload)
    gone = lost(workload, box)
    check_handled(workload, box)
    workload.stop(workload.workers)
    return gone


def _connecting(server: RedisServer) -> Callable[[], redis.Redis]:
    return lambda: redis.Redis.from_url(server.url())


def test_a_log_that_is_cut_anywhere_leaves_a_whole_box(tmp_path: Path) -> None:
    """A power cut ends the log in the middle of a write: a script is in it as a whole, or not at all."""
    chance = random.Random(1)
    with RedisServer(appendonly=True) as server:
        with workload_on(server.url(), tmp_path, workers=2, writers=2, fifo=True, trouble=0.1) as workload:
            workload.await_more(300)
            workload.close()
        server.kill()
        [log] = (server.data / "appendonlydir").glob("*.incr.aof")
        whole = log.read_bytes()
        sizes = []
        for _ in range(30 * CHAOS):
            log.write_bytes(whole[: chance.randint(len(whole) // 10, len(whole))])
            server.start()
            with closing(redis.Redis.from_url(server.url())) as client:
                assert complaints(client, workload.options.prefix, BOX_KEY) == []
                sizes.append(len(Snapshot.take(client, workload.options.prefix, BOX_KEY).contents))
            server.kill()
        assert len(set(sizes)) > 10  # it was cut in many places
