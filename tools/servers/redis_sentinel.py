"""A private Redis with replicas, and the sentinels that put one of them in its place when it falls silent."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import redis

from tools.servers.base import HOST, PATIENCE, Server, ServerFailed, wait_for
from tools.servers.redis import RedisEnsemble, RedisServer, find_binary

SERVICE = "postroom"
"""The name by which clients ask for the primary."""
DOWN_AFTER = 1000
"""Milliseconds until a silent server counts as gone."""


class _Sentinel(RedisServer):
    """One sentinel. It writes what it learns into its own configuration file."""

    name = "sentinel"

    def __init__(self, primary: RedisServer, quorum: int, down_after: int, binary: Path) -> None:
        super().__init__(binary=binary)
        self._lines = [
            f"bind {HOST}",
            f"port {self.port}",
            "set-proc-title no",
            f"sentinel monitor {SERVICE} {HOST} {primary.port} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {down_after}",
            f"sentinel failover-timeout {SERVICE} 5000",
            f"sentinel parallel-syncs {SERVICE} 2",
        ]

    def prepare(self) -> None:
        super().prepare()
        self._configuration.write_text("\n".join([f"dir {self.data}", *self._lines, ""]))

    def command(self) -> list[str]:
        return [str(self.binary), str(self._configuration), "--sentinel"]

    @property
    def _configuration(self) -> Path:
        return self.folder / "sentinel.conf"


class RedisSentinel(RedisEnsemble):
    """One primary, its replicas, and sentinels, of which a majority decides."""

    service = SERVICE

    def __init__(
        self,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        settings: Mapping[str, str] | None = None,
        down_after: int = DOWN_AFTER,
        binary: Path | None = None,
    ) -> None:
        program = binary or find_binary()
        primary = RedisServer(settings, binary=program)
        self.data_servers = [primary, *(RedisServer.replica_of(primary) for _ in range(replicas))]
        quorum = sentinels // 2 + 1
        self.sentinels = [_Sentinel(primary, quorum, down_after, program) for _ in range(sentinels)]
        self.servers: list[Server] = [*self.data_servers, *self.sentinels]

    def start(self) -> None:
        """Return when the replicas follow and the sentinels know all of them and each other: a failover works then."""
        for server in self.data_servers:
            server.start()
        self.data_servers[0].wait_for_replicas(len(self.data_servers) - 1)
        for server in self.sentinels:
            server.start()
        wait_for(lambda: all(map(self._knows_all, self.sentinels)), "the sentinels to know each other")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of the sentinels."""
        return [server.address for server in self.sentinels]

    @property
    def primary(self) -> RedisServer:
        """The primary, according to the sentinels."""
        known = {server.port: server for server in self.data_servers}
        ports = {self._primary_port(server) for server in self.sentinels if server.running}
        if len(ports) != 1 or None in ports:
            raise ServerFailed("the sentinels do not agree on a primary")
        return known[int(ports.pop() or 0)]

    def fail_over(self, *, seconds: float = PATIENCE) -> RedisServer:
        """Kill the primary; return the next one, when the sentinels agree on it, and the others follow it."""
        old = self.primary
        old.kill()
        return self.await_failover(old, seconds=seconds)

    def await_failover(self, old: RedisServer, *, seconds: float = PATIENCE) -> RedisServer:
        """The next primary after one that was killed, when the sentinels agree on it, and the others follow it."""
        others = [server for server in self.data_servers if server.running]
        wait_for(lambda: self._agreed(other_than=old), "the sentinels to agree on a new primary", seconds=seconds)
        new = self.primary
        new.wait_for_replicas(len(others) - 1, seconds=seconds)
        return new

    def _agreed(self, *, other_than: RedisServer) -> bool:
        with contextlib.suppress(ServerFailed, redis.ConnectionError):
            primary = self.primary
            return primary is not other_than and primary.running and primary.is_primary
        return False

    def _knows_all(self, sentinel: RedisServer) -> bool:
        [found] = [value for key, value in sentinel.info("sentinel").items() if key.startswith("master")]
        expected = {"status": "ok", "slaves": len(self.data_servers) - 1, "sentinels": len(self.sentinels)}
        return all(found[key] == value for key, value in expected.items())

    def _primary_port(self, sentinel: RedisServer) -> int | None:
        address = sentinel.query("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(address[1]) if address else None
