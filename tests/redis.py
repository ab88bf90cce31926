"""Redis for this test process: the shared server, with prefixes of our own that are removed afterwards."""

from __future__ import annotations

import atexit
import functools
import secrets
from typing import Any

import redis
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import default_redis
from tools.servers.redis_cluster import RedisCluster

from postroom._connect import open_store
from postroom._kernel.program import Mode


@functools.cache
def server() -> str:
    """The URL of a server; without one, the test is skipped, or fails where it must not be."""
    try:
        return default_redis()
    except ServerMissing as error:
        missing(str(error))


@functools.cache
def cluster() -> str:
    """The URL of a real cluster of three nodes, for this process."""
    try:
        nodes = RedisCluster(3)
        nodes.start()
    except ServerMissing as error:
        missing(str(error))
    atexit.register(nodes.close)
    return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in (node.address for node in nodes.servers))


_PREFIXES: set[str] = set()


def new_prefix(*, of_shared_server: bool = True) -> str:
    """Returns an unused prefix. On the shared server, its keys are removed when this process ends."""
    prefix = f"t{secrets.token_hex(8)}"
    if of_shared_server:
        if not _PREFIXES:
            atexit.register(_remove_all)
        _PREFIXES.add(prefix)
    return prefix


def keys_of(prefix: str, url: str | None = None) -> set[str]:
    with redis.Redis.from_url(url or server()) as client:
        return {key.decode() for key in client.scan_iter(f"{{{prefix}*", count=10_000)}


def _remove_all() -> None:
    with redis.Redis.from_url(server()) as client:
        ours = [key for key in client.scan_iter("{t*", count=10_000) if _prefix_of(key) in _PREFIXES]
        for first in range(0, len(ours), 1000):
            client.unlink(*ours[first : first + 1000])


def _prefix_of(key: bytes) -> str:
    return key.decode(errors="replace").lstrip("{").partition(":")[0].partition("}")[0]


def open_at(url: str, mode: Mode, **options: Any) -> Any:
    return open_store(url, mode=mode, **options)
