"""Sixteen workers in four processes on one box, some of them killed: nothing is lost, and nothing is held by two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tools.servers.redis import RedisServer

from tests.redis_chaos.workload import (
    CHAOS,
    check_handled,
    check_order,
    check_whole,
    given_twice,
    lost,
    overlapping,
    workload_on,
)

PROCESSES, WORKERS = 4, 4


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.mark.parametrize("fifo", [False, True], ids=["unordered", "fifo"])
def test_killed_workers_lose_nothing(server: RedisServer, tmp_path: Path, fifo: bool) -> None:
    chance = random.Random(1)
    url = f"{server.url()}?pool_size=4"
    client = redis.Redis.from_url(server.url())
    with client, workload_on(url, tmp_path, workers=PROCESSES, writers=2, fifo=fifo) as workload:
        for _ in range(4 * CHAOS):
            workload.await_more(200, lambda: len(workload.handled()))
            check_whole(client, workload)  # while all of them work
            workload.kill(chance.choice(workload.workers))
            workload.start(workers=1)
        workload.stop(workload.writers)
        box = workload.let_finish(lambda: redis.Redis.from_url(server.url()))
        check_whole(client, workload)
        assert lost(workload, box) == []
        check_handled(workload, box)
        claims = workload.claims()
        assert given_twice(claims) == []
        assert overlapping(claims, workload.options.lease) == []
        assert len({claim.owner for claim in claims}) > PROCESSES  # it was a crowd
        if fifo:
            check_order(workload.calls())
        workload.stop(workload.workers)
