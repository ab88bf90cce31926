"""The primary dies and a replica takes its place, under load, watched by Sentinel and in a cluster.

With `wait_replicas`, an acknowledged write is on a replica too: none of them is lost. Without it,
replication is asynchronous, and what that loses is measured and printed. Before it dies, the primary is cut off from
its replicas for a moment: a kill alone loses nothing here, since what it has sent still arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from tools.servers.base import wait_for
from tools.servers.redis import RedisServer
from tools.servers.redis_cluster import RedisCluster
from tools.servers.redis_sentinel import RedisSentinel

from tests.redis_chaos.workload import (
    BOX_KEY,
    CHAOS,
    Workload,
    check_handled,
    check_order,
    check_whole,
    given_twice,
    lost,
    mistakable,
    workload_on,
)

WAIT = "wait_replicas=1&wait_timeout=500"
UNSEEN = 1000
"""Bytes that a primary writes without any replica, before it dies."""


@pytest.mark.parametrize("fifo", [False, True], ids=["unordered", "fifo"])
def test_with_sentinel_nothing_replicated_is_lost(tmp_path: Path, fifo: bool) -> None:
    with (
        RedisSentinel() as sentinel,
        workload_on(_sentinel_url(sentinel, WAIT), tmp_path, **_crowd(fifo=fifo)) as workload,
    ):
        for _ in range(CHAOS):
            workload.await_more(300)
            old = sentinel.primary
            with dying_alone(old, sentinel.data_servers) as await_unseen:
                await_unseen(UNSEEN)
            sentinel.await_failover(old)
            workload.await_more(300)
            old.start()  # it comes back as a replica, and everything that it alone knew is gone
            _await_following(sentinel, old)
        _check_all(workload, lambda: sentinel.primary, strict=True, fifo=fifo)


def test_in_a_cluster_nothing_replicated_is_lost(tmp_path: Path) -> None:
    with (
        RedisCluster(replicas=1) as cluster,
        workload_on(_cluster_url(cluster, WAIT), tmp_path, **_crowd()) as workload,
    ):
        key = _key(workload)
        for _ in range(CHAOS):
            workload.await_more(300)
            old = cluster.primary_of(key)
            with dying_alone(old, cluster.replicas_of(old)) as await_unseen:
                await_unseen(UNSEEN)
            new = cluster.await_failover(old, key)
            old.start()  # until it is back, nothing can be replicated, and so nothing is acknowledged
            new.wait_for_replicas(1)
            workload.await_more(300)
        _check_all(workload, lambda: cluster.primary_of(key), strict=True)


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_what_asynchronous_replication_loses(tmp_path: Path, kind: str, emit: Callable[[str], None]) -> None:
    """Messages. But the box is whole, the workers go on, and no outcome of a lost message is taken for another's."""
    with RedisSentinel() if kind == "sentinel" else RedisCluster(replicas=1) as ensemble:
        url = _sentinel_url(ensemble, "") if isinstance(ensemble, RedisSentinel) else _cluster_url(ensemble, "")
        with workload_on(url, tmp_path, **_crowd(pace=0.0)) as workload:
            workload.await_more(1000)
            if isinstance(ensemble, RedisSentinel):
                old = ensemble.primary
                with dying_alone(old, ensemble.data_servers):
                    workload.await_more(100)
                new = ensemble.await_failover(old)
            else:
                old = ensemble.primary_of(_key(workload))
                with dying_alone(old, ensemble.replicas_of(old)):
                    workload.await_more(100)
                new = ensemble.await_failover(old, _key(workload))
            workload.await_more(1000)
            gone, twice, acked = _check_all(workload, lambda: new, strict=False)
            mixed = mistakable(workload.claims())
        emit(
            f"{kind}, without WAIT: {gone} of {acked} acknowledged messages lost, {twice} claims given twice, "
            f"of which {mixed} to the same worker for another message"
        )
        assert gone  # otherwise the tests above prove nothing
        assert not mixed  # what a worker has done for a lost message must not end another


@contextmanager
def dying_alone(primary: RedisServer, others: Sequence[RedisServer]) -> Iterator[Callable[[int], None]]:
    """A network that fails between a primary and its replicas, while its clients still reach it; then it is killed.

    Yields a function that waits until the primary has written so many bytes that no replica has.
    """
    replicas = [server for server in others if server is not primary]
    for server in replicas:
        server.pause()  # otherwise they would come again at once
    primary.query("CLIENT", "KILL", "TYPE", "replica")
    began = int(primary.info("replication")["master_repl_offset"])

    def await_unseen(count: int) -> None:
        wait_for(
            lambda: int(primary.info("replication")["master_repl_offset"]) >= began + count,
            "the primary to write what no replica has",
        )

    try:
        yield await_unseen
        primary.kill()
    finally:
        for server in replicas:
            server.resume()


def _crowd(*, fifo: bool = False, pace: float = 0.005) -> dict[str, Any]:
    return {"workers": 2, "writers": 2, "fifo": fifo, "pace": pace}


def _sentinel_url(sentinel: RedisSentinel, query: str) -> str:
    hosts = ",".join(f"{host}:{port}" for host, port in sentinel.addresses)
    return f"redis+sentinel://{hosts}/{sentinel.service}/0?{query}"


def _cluster_url(cluster: RedisCluster, query: str) -> str:
    hosts = ",".join(f"{server.host}:{server.port}" for server in cluster.servers)
    return f"redis+cluster://{hosts}?{query}"


def _key(workload: Workload) -> str:
    return f"{{{workload.options.prefix}:{BOX_KEY}}}"


def _await_following(sentinel: RedisSentinel, old: RedisServer) -> None:
    """Sentinel takes some seconds to configure a server that is back as a replica."""
    sentinel.primary.wait_for_replicas(len(sentinel.data_servers) - 1)
    assert not old.is_primary


def _check_all(
    workload: Workload, primary: Callable[[], RedisServer], *, strict: bool, fifo: bool = False
) -> tuple[int, int, int]:
    """When all is handled: lost messages, claims that were given twice, and messages that were acknowledged."""
    workload.stop(workload.writers)
    box = workload.let_finish(lambda: redis.Redis.from_url(primary().url()))
    with closing(redis.Redis.from_url(primary().url())) as client:
        check_whole(client, workload)
    gone, twice = lost(workload, box), given_twice(workload.claims())
    check_handled(workload, box)
    if strict:
        assert gone == []
        assert twice == []
        if fifo:
            check_order(workload.calls())
    workload.stop(workload.workers)
    return len(gone), len(twice), len(workload.acked())
