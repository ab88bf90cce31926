"""Receives the wake-ups of all stores of one server, on one connection."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from redis.asyncio.client import PubSub

from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.program import async_runner
from postroom._stores.probe import ProbeTask
from postroom._stores.redis.client import close_client
from postroom._stores.redis.durability import EVERYWHERE, oldest_version
from postroom._stores.redis.layout import channel
from postroom._stores.redis.listener import Listener
from postroom._stores.redis.redis_py import Client

_oldest_version = async_runner(oldest_version)


class ProbeClient(NamedTuple):
    """A client of redis-py for one URL, which has made no connection."""

    client: Client
    is_cluster: bool


class RedisProbe:
    """Subscribes to the channel of each store. A put is returned at once.

    A channel is named by the prefix, and all databases of a server share it. So stores that differ only in the number
    of their database are returned together.

    A wake-up is published for messages that can be claimed, also by this process. Stores with `notify=False` publish
    none. If the user of a URL may not subscribe to the channels of other stores, `wait` raises the error of the server.

    A cluster since Redis 7 has a channel for each box, on the node that has the box. There is one connection to each of
    these nodes, and only the boxes that `set_stores` names are known. redis-py before 8 cannot subscribe to them: then
    `wait` returns nothing.
    """

    def __init__(self, make_client: Callable[[str], ProbeClient], prefix_of: Callable[[str], str], prefix: str) -> None:
        """`make_client`: returns a client for a URL. `prefix_of`: returns the prefix of keys for an option. `prefix`:
        the option of stores for which none is given."""
        self._make_client = make_client
        self._prefix_of = prefix_of
        self._prefix = prefix
        self._urls: list[str] = []
        self._prefixes: dict[str, str] = {}
        self._boxes: frozenset[str] = frozenset()
        self._stores: dict[str, set[str]] = {}
        """The stores of each channel."""
        self._channels: set[str] = set()
        self._listener = Listener(self._channels, returns="channel")
        self._has_stores = asyncio.Event()
        self._client: Client | None = None
        self._is_sharded = False
        self._failures = 0
        self._task = ProbeTask()

    def set_stores(
        self,
        urls: Mapping[str, str],
        *,
        prefixes: Mapping[str, str] | None = None,
        boxes: Collection[str] = (),
    ) -> None:
        """Sets the stores: see `Probe`."""
        prefixes = prefixes or {}
        self._urls = list(urls.values())
        self._prefixes = {store: self._prefix_of(prefixes.get(store, self._prefix)) for store in urls}
        self._boxes = frozenset(boxes)
        self._set_channels()

    def _set_channels(self) -> None:
        stores: defaultdict[str, set[str]] = defaultdict(set)
        for store, prefix in self._prefixes.items():
            for box in self._boxes if self._is_sharded else ("",):  # without sharding, the box is not part of the name
                stores[channel(prefix, box, sharded=self._is_sharded)].add(store)
        if self._is_sharded and not hasattr(PubSub, "ssubscribe"):
            stores.clear()
        self._stores = stores
        self._channels.clear()
        self._channels.update(stores)
        self._listener.channels_changed()
        (self._has_stores.set if self._urls else self._has_stores.clear)()

    async def wait(self) -> frozenset[str]:
        """Waits for wake-ups: see `Probe`."""
        return await self._task.run(self._wait())

    async def _wait(self) -> frozenset[str]:
        while True:
            check_cancelled()
            if not self._urls:
                await self._disconnect()
                await self._has_stores.wait()
            try:
                client = self._client or await self._connect()
                woken = await self._listener.wait(client, sharded=self._is_sharded)
            except Exception:
                self._failures += 1
                await self._disconnect()
                raise
            stores = frozenset(store for each in woken for store in self._stores.get(each, ()))
            if stores:
                return stores

    async def _connect(self) -> Client:
        # After a failure the URL of another store is tried: one password may be wrong.
        client, is_cluster = self._make_client(self._urls[self._failures % len(self._urls)])
        try:
            # A single server is not asked: that would be another connection.
            self._is_sharded = is_cluster and await _oldest_version(client, EVERYWHERE) >= (7,)
        except BaseException:
            await close_client(client)
            raise
        self._client = client
        self._set_channels()
        return client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        await self._listener.close()
        if client is not None:
            await close_client(client)

    def refresh(self, store: str) -> bool:
        """Returns False: a wake-up does not say which process has published it."""
        return False

    async def close(self) -> None:
        """Ends a pending `wait` and closes the connection: see `Probe`."""
        await self._task.close()
        await self._disconnect()
