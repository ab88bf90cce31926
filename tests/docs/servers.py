"""The Redis on which the programs of the documentation run."""

from __future__ import annotations

import functools

from tools.servers.base import ServerMissing, missing
from tools.servers.redis import RedisServer


def empty_redis() -> str:
    """The URL of a server of this process's own, with nothing in it: programs run one after the other."""
    server = _server()
    server.query("FLUSHALL")
    return server.url()


@functools.cache
def _server() -> RedisServer:
    """Set up as the page about Redis asks for. It ends with this process."""
    try:
        server = RedisServer({"maxmemory-policy": "noeviction"}, appendonly=True)
    except ServerMissing as error:
        missing(error)
    server.start()
    return server
