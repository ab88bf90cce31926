"""Receives wake-ups that other processes publish, on separate connections.

A wake-up is never lost in this module: a subscription that is new, or new again after a lost connection, makes `wait`
return `ANY_BOX`, so that every worker claims once after it. Wake-ups between two calls of `wait` are collected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from postroom._kernel.cancellation import is_cancelled
from postroom._stores.redis.redis_py import Client, Node, Subscriptions

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

_log = logging.getLogger("postroom")

ANY_BOX: frozenset[str] = frozenset()
HEARTBEAT = 30.0
"""Seconds without a message after which the listener sends a PING."""
MAX_SILENT_HEARTBEATS = 2
"""PINGs in a row without a reply after which the connection is dead."""
UNSUBSCRIBED = {"unsubscribe", "sunsubscribe"}
"""The server ends a sharded subscription when the slot moves to another node."""


class Listener:
    """Subscriptions of one process and event loop.

    `wait` subscribes. Ordinary channels share one connection. A sharded channel needs a connection to the node that
    has its box.
    """

    def __init__(self, channels: AbstractSet[str], *, returns: Literal["data", "channel"] = "data") -> None:
        """`channels` is the set of the caller, which may change it and then calls `channels_changed`.

        `returns`: what `wait` returns of a wake-up: the data, which is the key of a box, or the name of the channel.
        """
        self._channels = channels
        self._returns = returns
        self._subscribed: dict[str, Node | None] = {}
        self._readers: dict[Node | None, tuple[Subscriptions, asyncio.Task[None]]] = {}
        """Node (None: any node) → the subscription and the task that reads it."""
        self._woken: set[str] = set()
        """The wake-ups since the last `wait`."""
        self._changed = asyncio.Event()
        self._is_lost = False

    def channels_changed(self) -> None:
        if self._channels != self._subscribed.keys():
            self._changed.set()

    async def wait(self, client: Client, *, sharded: bool) -> frozenset[str]:
        """Waits for wake-ups and returns their boxes or channels; `ANY_BOX` after it has subscribed to a channel.

        Raises ConnectionError if a connection was lost. The next call subscribes again.
        """
        while True:
            if self._is_lost:
                await self.close()
                raise ConnectionError("a listening connection was lost; workers poll until it is back")
            if removed := self._subscribed.keys() - self._channels:
                await self._unsubscribe(removed, sharded=sharded)
            if self._channels - self._subscribed.keys():
                await self._subscribe(client, sharded=sharded)
                return ANY_BOX
            if self._woken:
                woken, self._woken = frozenset(self._woken), set()
                return woken
            self._changed.clear()
            await self._changed.wait()

    async def _subscribe(self, client: Client, *, sharded: bool) -> None:
        try:
            for channel in sorted(self._channels - self._subscribed.keys()):
                node = client.get_node_from_key(channel) if sharded else None
                known = self._readers.get(node)
                pubsub = known[0] if known else _open(client, node)
                await (pubsub.ssubscribe if sharded else pubsub.subscribe)(channel)
                if known is None:
                    self._readers[node] = pubsub, asyncio.create_task(self._read(pubsub))
                self._subscribed[channel] = node
        except BaseException:
            await self.close()
            raise

    async def _unsubscribe(self, channels: AbstractSet[str], *, sharded: bool) -> None:
        try:
            for channel in channels:
                pubsub, _ = self._readers[self._subscribed.pop(channel)]
                await (pubsub.sunsubscribe if sharded else pubsub.unsubscribe)(channel)
        except BaseException:
            await self.close()
            raise

    async def _read(self, pubsub: Subscriptions) -> None:
        silent = 0
        try:
            # redis-py may drop a cancellation that arrives together with a message.
            while silent < MAX_SILENT_HEARTBEATS and not is_cancelled():
                message = await pubsub.get_message(timeout=HEARTBEAT)
                if message is None:
                    silent += 1
                    await pubsub.ping()
                    continue
                silent = 0
                if message["type"] in UNSUBSCRIBED and message["channel"].decode() in self._subscribed:
                    break
                if message["type"] in {"message", "smessage"}:
                    self._woken.add(message[self._returns].decode())
                    self._changed.set()
        except Exception:  # noqa: BLE001 - after any error the connection is closed and made again
            _log.info("a listening connection has ended")
        finally:
            self._is_lost = True
            self._changed.set()

    async def close(self) -> None:
        readers, self._readers = self._readers, {}
        for pubsub, task in readers.values():
            task.cancel()
            await asyncio.wait([task])
            with suppress(Exception):  # the connection may be broken
                await pubsub.aclose()
            with suppress(Exception):
                await pubsub.connection_pool.disconnect()
        self._subscribed, self._woken, self._is_lost = {}, set(), False


def _open(client: Client, node: Node | None) -> Subscriptions:
    """Returns a subscription on a new connection, made with the client's settings."""
    from redis.asyncio import ConnectionPool, Redis

    if node is not None:
        pool = ConnectionPool(node.connection_class, **node.connection_kwargs)
    else:
        pool = _separate_pool(client)
    return Redis(connection_pool=pool).pubsub()


def _separate_pool(client: Client) -> ConnectionPool:
    """Returns a pool with the client's settings. Verbs may use all connections of the client's own pool."""
    from redis.asyncio import ConnectionPool

    if hasattr(client, "get_default_node"):  # a cluster without sharded channels: every node gets every wake-up
        node = client.get_default_node()
        return ConnectionPool(node.connection_class, **node.connection_kwargs)
    pool = client.connection_pool
    if hasattr(pool, "sentinel_manager"):
        settings = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
        separate: ConnectionPool = type(pool)(pool.service_name, pool.sentinel_manager, **settings)
        return separate
    return ConnectionPool(pool.connection_class, **pool.connection_kwargs)
