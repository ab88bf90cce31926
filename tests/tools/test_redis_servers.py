"""The private Redis servers of the tests: what they keep, what they lose, and who takes over."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tools.requirements import ROOT
from tools.servers.base import ServerFailed, ServerMissing, missing, wait_for
from tools.servers.redis import RedisServer, default_redis, find_binary, is_responding
from tools.servers.redis_cluster import RedisCluster
from tools.servers.redis_sentinel import RedisSentinel
from tools.servers.valkey import ValkeyServer, find_valkey


@pytest.fixture(scope="module")
def binary() -> Path:
    try:
        return find_binary()
    except ServerMissing as reason:
        missing(reason)


@pytest.fixture
def server(binary: Path) -> Iterator[RedisServer]:
    with RedisServer(binary=binary) as started:
        yield started


def test_a_server_has_the_defaults_of_redis_and_is_the_version_it_says(server: RedisServer) -> None:
    assert server.query("CONFIG", "GET", "appendonly") == {"appendonly": "no"}
    assert server.query("CONFIG", "GET", "save") == {"save": "3600 1 300 100 60 10000"}
    found = server.info("server")
    assert found.get("valkey_version", found["redis_version"]) == server.version


def test_settings_hold_from_the_next_start_and_a_stop_keeps_the_data(server: RedisServer) -> None:
    server.query("SET", "entry", 1)
    server.settings["maxmemory"] = "7mb"
    port = server.port
    server.restart()
    assert server.port == port
    assert server.query("CONFIG", "GET", "maxmemory") == {"maxmemory": str(7 * 2**20)}
    assert server.query("GET", "entry") == "1"


def test_without_a_log_a_kill_loses_what_no_snapshot_has(server: RedisServer) -> None:
    server.query("SET", "entry", 1)
    server.query("SAVE")
    server.query("SET", "entry", 2)
    server.kill()
    assert not is_responding(server.url())
    server.start()
    assert server.query("GET", "entry") == "1"


def test_with_a_log_on_the_disk_a_kill_loses_nothing(binary: Path) -> None:
    with RedisServer(appendonly=True, appendfsync="always", binary=binary) as server:
        server.query("SET", "entry", 1)
        server.kill()
        server.start()
        assert server.query("GET", "entry") == "1"


def test_a_paused_server_responds_after_it_is_resumed(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url(), socket_timeout=0.1) as client:
        client.ping()
        server.pause()
        try:
            with pytest.raises(redis.TimeoutError):
                client.ping()
        finally:
            server.resume()
    assert server.query("PING")


def test_a_server_that_cannot_start_raises_its_log_and_leaves_nothing(binary: Path) -> None:
    broken = RedisServer({"no-such-setting": "1"}, binary=binary)
    with pytest.raises(ServerFailed, match="no-such-setting"), broken:
        pass
    assert not broken.folder.exists()


def test_a_valkey_responds_too() -> None:
    try:
        find_valkey()
    except ServerMissing as reason:
        missing(reason)
    with ValkeyServer() as server:
        assert server.info("server")["valkey_version"] == server.version


def test_a_cluster_shares_the_slots_and_a_replica_takes_over(binary: Path) -> None:
    with RedisCluster(replicas=1, binary=binary) as cluster:
        keys = [f"entry-{number}" for number in range(50)]
        with cluster.client() as client:
            for key in keys:
                client.set(key, "kept")
        assert {cluster.primary_of(key).port for key in keys} == {server.port for server in cluster.servers[:3]}
        old = cluster.primary_of(keys[0])
        old.wait_for_replicas(1)
        [replica] = cluster.replicas_of(old)
        assert cluster.fail_over(keys[0]) is replica
        with cluster.client(decode_responses=True) as client:
            assert [client.get(key) for key in keys] == ["kept"] * len(keys)
        old.start()
        replica.wait_for_replicas(1)
        assert not old.is_primary
    assert not any(server.folder.exists() for server in cluster.servers)


def test_sentinels_put_a_replica_in_the_place_of_a_dead_primary(binary: Path) -> None:
    with RedisSentinel(binary=binary) as sentinel:
        old = sentinel.primary
        old.query("SET", "entry", 1)
        old.wait_for_replicas(2)
        new = sentinel.fail_over()
        assert new is not old
        assert new.query("GET", "entry") == "1"
        primary = redis.Sentinel(sentinel.addresses).discover_master(sentinel.service)  # type: ignore[no-untyped-call]
        assert primary == new.address
    assert not any(server.folder.exists() for server in sentinel.servers)


def test_the_default_server_responds() -> None:
    try:
        url = default_redis()
    except ServerMissing as reason:
        missing(reason)
    assert is_responding(url)
    assert default_redis() is url


OWNER = """
import sys
from tools.servers.redis import RedisServer

server = RedisServer()
server.start()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def test_a_server_ends_with_the_process_that_started_it(binary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().decode().split()
        assert folder in _command_line(int(pid))
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=20)
    wait_for(lambda: not Path(folder).exists(), "the folder to be removed")
    assert folder not in _command_line(int(pid))


def _command_line(pid: int) -> str:
    command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
