"""Makes clients of redis-py: for an address, or from the pool that the user passed.

A function that is returned here is called once per process and event loop (see `RedisClientVerbs`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from postroom._kernel.local import UserPool
from postroom._stores.redis.redis_py import Client
from postroom._stores.redis.url import SOCKET_TIMEOUT, RedisAddress
from postroom.errors import ArgumentTypeError, ArgumentValueError

EXTRA_CONNECTIONS = 2
"""Beyond the pool size: redis-py also uses connections to ask for the topology."""


def client_factory(address: RedisAddress, mode: str, pool_size: int) -> Callable[[], Client]:
    """Returns a function that makes a client for an address.

    The client does not retry: the retrying wrapper decides that, once for all stores.
    """
    module = _module(mode)
    retry = (AsyncRetry if mode == "async" else Retry)(NoBackoff(), 0)
    common: dict[str, object] = {
        "socket_connect_timeout": 10,
        "socket_timeout": SOCKET_TIMEOUT,
        "client_name": "postroom",
    }
    if not address.url.startswith("unix://"):
        common["socket_keepalive"] = True
    login = {"username": address.username, "password": address.password}
    tls = {"ssl": True} if address.tls else {}

    def single() -> Client:
        pool = module.BlockingConnectionPool.from_url(
            address.url, max_connections=pool_size, timeout=10, retry=retry, **common
        )
        client: Client = module.Redis.from_pool(pool)
        return client

    def sentinel() -> Client:
        sentinels = module.Sentinel(address.hosts, sentinel_kwargs={"socket_timeout": 5, **tls})
        # This pool raises instead of waiting for a connection: the store limits the commands under way.
        client: Client = sentinels.master_for(
            address.service,
            db=address.database,
            max_connections=pool_size + EXTRA_CONNECTIONS,
            retry=retry,
            **login,
            **tls,
            **common,
        )
        return client

    def cluster() -> Client:
        # Before redis-py 6, the retries of a cluster client were a number.
        is_old = int(redis.__version__.partition(".")[0]) < 6
        client: Client = module.RedisCluster(
            startup_nodes=[module.cluster.ClusterNode(*host) for host in address.hosts],
            max_connections=pool_size + EXTRA_CONNECTIONS,
            **({"cluster_error_retry_attempts": 0} if is_old else {"retry": retry}),
            **login,
            **tls,
            **common,
        )
        return client

    return {"single": single, "sentinel": sentinel, "cluster": cluster}[address.kind]


def factory_for(pool: object, mode: str) -> tuple[Callable[[], Client], bool]:
    """Returns a function that returns a client for the user's pool or client, and whether that is a cluster."""
    module = _module(mode)
    client = module.Redis(connection_pool=pool) if isinstance(pool, module.ConnectionPool) else pool
    if not isinstance(client, module.Redis | module.RedisCluster):
        where = module.__name__
        raise ArgumentTypeError(
            f"pool is a {type(pool).__module__}.{type(pool).__name__}; {mode} code takes one of: {where}.Redis, "
            f"{where}.RedisCluster, {where}.ConnectionPool"
        )
    if client.get_encoder().decode_responses:
        raise ArgumentValueError("this client decodes responses to text: make it with decode_responses=False")
    # A sync client detects a fork and reconnects. An async client belongs to one process and event loop.
    make: Callable[[], Client] = UserPool(client).get if mode == "async" else lambda: client
    return make, isinstance(client, module.RedisCluster)


def _module(mode: str) -> ModuleType:
    return redis.asyncio if mode == "async" else redis
