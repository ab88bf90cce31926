"""A private Redis Cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.cluster import ClusterNode

from tools.servers.base import HOST, PATIENCE, ServerFailed, free_port, wait_for
from tools.servers.redis import RedisEnsemble, RedisServer

SLOTS = 16_384
NODE_TIMEOUT = 1500
"""Milliseconds until a silent node counts as gone. A failover takes about twice as long."""


class RedisCluster(RedisEnsemble):
    """Primaries that share the slots evenly, each with so many replicas. Needs Redis 7 or Valkey.

    It is made by commands, as `redis-cli --cluster create` does: so it can be made of Valkey too, whose package has no
    such program.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        replicas: int = 0,
        settings: Mapping[str, str] | None = None,
        node_timeout: int = NODE_TIMEOUT,
        binary: Path | None = None,
    ) -> None:
        self._buses: dict[int, int] = {}
        self._replicas = replicas
        self.servers: list[RedisServer] = []
        for _ in range(nodes * (1 + replicas)):
            bus = free_port()
            ours = {
                "cluster-enabled": "yes",
                "cluster-port": str(bus),
                "cluster-node-timeout": str(node_timeout),
                "cluster-replica-validity-factor": "0",  # a replica may follow, however long its primary was silent
                "cluster-allow-replica-migration": "no",  # replicas keep their primaries
                **(settings or {}),
            }
            server = RedisServer(ours, binary=binary)
            self._buses[server.port] = bus
            self.servers.append(server)
        self._nodes = nodes

    def start(self) -> None:
        """Return when every slot is served and every replica follows."""
        for epoch, server in enumerate(self.servers, 1):
            server.start()
            server.query("CLUSTER", "SET-CONFIG-EPOCH", epoch)  # else they need a while to agree on different ones
        primaries, others = self.servers[: self._nodes], self.servers[self._nodes :]
        first, *rest = self.servers
        for server in rest:
            first.query("CLUSTER", "MEET", HOST, server.port, self._buses[server.port])
        bounds = [SLOTS * number // self._nodes for number in range(self._nodes + 1)]
        for server, start, end in zip(primaries, bounds, bounds[1:], strict=False):
            server.query("CLUSTER", "ADDSLOTS", *range(start, end))
        wait_for(lambda: all(self._known(server) == len(self.servers) for server in self.servers), "the nodes to meet")
        for number, server in enumerate(others):
            server.query("CLUSTER", "REPLICATE", _id(primaries[number % self._nodes]))
        self.wait_until_ok()
        for server in primaries:
            server.wait_for_replicas(self._replicas)

    @property
    def urls(self) -> list[str]:
        """Of all nodes. A client needs one of them that is up."""
        return [server.url() for server in self.servers]

    @property
    def url(self) -> str:
        """Of a node that is up."""
        return self._alive()[0].url()

    def client(self, **options: Any) -> redis.RedisCluster:
        nodes = [ClusterNode(HOST, server.port) for server in self._alive()]  # type: ignore[no-untyped-call]
        return redis.RedisCluster(startup_nodes=nodes, **options)

    @property
    def primaries(self) -> list[RedisServer]:
        """Those that are up and take writes."""
        return [server for server in self._alive() if server.is_primary]

    def primary_of(self, key: str) -> RedisServer:
        """Returns the primary of a key's slot. Other nodes may learn of a change a little later."""
        slot = int(self._alive()[0].query("CLUSTER", "KEYSLOT", key))
        return self._primary_of_slot(slot)

    def replicas_of(self, primary: RedisServer) -> list[RedisServer]:
        known = {server.port: server for server in self.servers}
        found = primary.info("replication")
        return [known[int(found[f"slave{number}"]["port"])] for number in range(found["connected_slaves"])]

    def wait_until_ok(self, *, seconds: float = PATIENCE) -> None:
        """Return when every node that is up says that all slots are served."""
        wait_for(lambda: all(map(_is_ok, self._alive())), "the cluster to serve all slots", seconds=seconds)

    def fail_over(self, key: str, *, seconds: float = PATIENCE) -> RedisServer:
        """Kills the primary of a key's slot. Returns the new primary when all nodes know it."""
        old = self.primary_of(key)
        if not self.replicas_of(old):
            raise ServerFailed("a node without replicas cannot be failed over")
        old.kill()
        return self.await_failover(old, key, seconds=seconds)

    def await_failover(self, old: RedisServer, key: str, *, seconds: float = PATIENCE) -> RedisServer:
        """Returns the new primary of a key's slot after the old one was killed, when all nodes know it."""
        survivors = self._alive()
        slot = int(survivors[0].query("CLUSTER", "KEYSLOT", key))
        wait_for(
            lambda: {_owner(server, slot) for server in survivors}.isdisjoint({None, old.port}),
            "a replica to take over",
            seconds=seconds,
        )
        self.wait_until_ok(seconds=seconds)
        return self._primary_of_slot(slot)

    def _primary_of_slot(self, slot: int) -> RedisServer:
        for server in self.primaries:
            if _owner(server, slot) == server.port:
                return server
        raise ServerFailed(f"no node serves the slot {slot}")

    def _alive(self) -> list[RedisServer]:
        found = [server for server in self.servers if server.running]
        if not found:
            raise ServerFailed("no node of the cluster is running")
        return found

    def _known(self, server: RedisServer) -> int:
        return int(_cluster_info(server)["cluster_known_nodes"])


def _id(server: RedisServer) -> str:
    return str(server.query("CLUSTER", "MYID"))


def _cluster_info(server: RedisServer) -> dict[str, str]:
    lines = str(server.query("CLUSTER", "INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _is_ok(server: RedisServer) -> bool:
    return _cluster_info(server)["cluster_state"] == "ok"


def _owner(server: RedisServer, slot: int) -> int | None:
    """The port of the primary to which a node would send a client."""
    for start, end, primary, *_ in server.query("CLUSTER", "SLOTS"):
        if start <= slot <= end:
            return int(primary[1])
    return None
