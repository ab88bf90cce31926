"""Hears what other processes have put, on connections that do nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

_log = logging.getLogger("postroom")

EVERYTHING: frozenset[str] = frozenset()
HEARTBEAT = 30.0
"""Seconds of silence after which a listening connection is asked whether it lives."""
ENDED = {"unsubscribe", "sunsubscribe"}
"""We never end a subscription: the server does, when a slot moves to another node."""


class Listener:
    """Subscribed by the first `wait`, and again by the first one after a connection was lost.

    Most channels are heard on one connection; a sharded channel only on a connection to the node that has its box.
    """

    def __init__(self, wanted: AbstractSet[str]) -> None:
        """`wanted`: the channels, which may become more; then `look_again`."""
        self._wanted = wanted
        self._subscribed: set[str] = set()
        self._readers: dict[Any, tuple[Any, asyncio.Task[None]]] = {}
        """Node (or nothing) → its subscription, and who reads it."""
        self._heard: set[str] = set()
        self._news = asyncio.Event()
        self._is_lost = False

    def look_again(self) -> None:
        if self._wanted - self._subscribed:
            self._news.set()

    async def wait(self, client: Any, *, sharded: bool) -> frozenset[str]:
        """The keys of boxes that may have work; after a new beginning, all of them: `EVERYTHING`."""
        while True:
            if self._is_lost:
                await self.close()
                raise ConnectionError("a listening connection was lost; workers poll until it is back")
            if self._wanted - self._subscribed:
                await self._subscribe(client, sharded=sharded)
                return EVERYTHING
            if self._heard:
                heard, self._heard = frozenset(self._heard), set()
                return heard
            self._news.clear()
            await self._news.wait()

    async def _subscribe(self, client: Any, *, sharded: bool) -> None:
        try:
            for channel in sorted(self._wanted - self._subscribed):
                node = client.get_node_from_key(channel) if sharded else None
                known = self._readers.get(node)
                pubsub = known[0] if known else _open(client, node)
                await (pubsub.ssubscribe if sharded else pubsub.subscribe)(channel)
                if known is None:
                    self._readers[node] = pubsub, asyncio.create_task(self._read(pubsub))
                self._subscribed.add(channel)
        except BaseException:
            await self.close()
            raise

    async def _read(self, pubsub: Any) -> None:
        silent, task = 0, asyncio.current_task()
        try:
            # redis-py may drop a cancellation that comes as a message does.
            while silent < 2 and not (task is not None and task.cancelling()):
                message = await pubsub.get_message(timeout=HEARTBEAT)
                if message is None:  # a connection that says nothing may be dead
                    silent += 1
                    await pubsub.ping()
                    continue
                silent = 0
                if message["type"] in ENDED:
                    break
                if message["type"] in {"message", "smessage"}:
                    self._heard.add(message["data"].decode())
                    self._news.set()
        except Exception:  # noqa: BLE001 - whatever it is, there is nothing to hear any more
            _log.info("a listening connection has ended")
        finally:
            self._is_lost = True
            self._news.set()

    async def close(self) -> None:
        readers, self._readers = self._readers, {}
        for pubsub, task in readers.values():
            task.cancel()
            await asyncio.wait([task])
            with suppress(Exception):  # it is thrown away
                await pubsub.aclose()
            with suppress(Exception):
                await pubsub.connection_pool.disconnect()
        self._subscribed, self._heard, self._is_lost = set(), set(), False


def _open(client: Any, node: Any) -> Any:
    """A subscription on a connection of its own, made as the client makes its connections."""
    from redis.asyncio import ConnectionPool, Redis

    if node is not None:
        pool: Any = ConnectionPool(node.connection_class, **node.connection_kwargs)
    else:
        pool = _like(client)
    return Redis(connection_pool=pool).pubsub()


def _like(client: Any) -> Any:
    """A pool beside the client's own: one that is used up by verbs must not keep us from listening."""
    from redis.asyncio import ConnectionPool

    if hasattr(client, "get_default_node"):  # a cluster without sharded channels: any node will do
        node = client.get_default_node()
        return ConnectionPool(node.connection_class, **node.connection_kwargs)
    theirs = client.connection_pool
    if hasattr(theirs, "sentinel_manager"):
        return type(theirs)(theirs.service_name, theirs.sentinel_manager, **_without(theirs.connection_kwargs))
    return ConnectionPool(theirs.connection_class, **theirs.connection_kwargs)


def _without(given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "connection_pool"}
