"""What this package uses of redis-py, for both modes: methods that send something are coroutines in async mode."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeAlias

Reply: TypeAlias = Any
"""What a server replies: a number, bytes, None, or a list of these. It depends on the command or script."""


class Pipeline(Protocol):
    """Commands that are sent together."""

    def execute_command(self, *command: object) -> object: ...
    def execute(self, *, raise_on_error: bool) -> Reply: ...


class Node(Protocol):
    """A server of a cluster, or the pool of connections to one server."""

    connection_class: type
    connection_kwargs: dict[str, Any]

    def execute_pipeline(self, commands: Sequence[object], /) -> object:
        """Only the nodes of async clusters have it."""


class Client(Protocol):
    """A client for one server, for the master of a Sentinel service, or for a cluster."""

    connection_pool: Any
    """Clients of clusters do not have it."""

    def execute_command(self, *command: object) -> object: ...
    def info(self, section: str, **nodes: str) -> object: ...
    def config_get(self, pattern: str, **nodes: str) -> object: ...
    def pipeline(self, *, transaction: bool) -> Pipeline: ...

    def get_node_from_key(self, key: bytes | str, /) -> Node:
        """Only clients of clusters have it."""

    def get_redis_connection(self, node: Node, /) -> Client:
        """Only sync clients of clusters have it."""


class Subscriptions(Protocol):
    """A connection that receives what is published. redis-py before 8 has no sharded channels."""

    connection_pool: Any

    async def subscribe(self, channel: str, /) -> None: ...
    async def ssubscribe(self, channel: str, /) -> None: ...
    def unsubscribe(self, channel: str, /) -> Awaitable[object]: ...
    def sunsubscribe(self, channel: str, /) -> Awaitable[object]: ...
    async def get_message(self, *, timeout: float) -> dict[str, Any] | None: ...  # noqa: ASYNC109 - redis-py's name
    def ping(self) -> Awaitable[object]: ...
    async def aclose(self) -> None: ...
