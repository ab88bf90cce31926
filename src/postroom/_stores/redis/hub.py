"""A hub on Redis: one channel, for the stores of all servers."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from postroom._stores.redis.client import close_client
from postroom._stores.redis.listener import Listener
from postroom._stores.redis.redis_py import Client


class RedisChannel:
    """See `hub.Channel`. On a cluster, every node gets what is published."""

    def __init__(self, client: Client, name: str) -> None:
        self._client: Any = client
        self._name = name
        self._listener = Listener({name})

    async def send(self, texts: list[str]) -> None:
        """Sends the texts in one command."""
        await self._client.execute_command("PUBLISH", self._name, json.dumps(texts))

    async def receive(self) -> Collection[str]:
        """Waits for texts."""
        if hasattr(self._client, "get_default_node"):
            await self._client.initialize()
        received = await self._listener.wait(self._client, sharded=False)
        return [text for texts in received for text in json.loads(texts)]

    async def close(self) -> None:
        """Closes the connections."""
        await self._listener.close()
        await close_client(self._client)
