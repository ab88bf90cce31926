"""Sends scripts and commands through clients of redis-py, sync or async: one server, Sentinel, or a cluster."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis import exceptions
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import PipelineCommand

from postroom._kernel.local import PerLoop, PerProcess
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.redis.durability import EVERYWHERE, Durability
from postroom._stores.redis.listener import Listener
from postroom._stores.redis.redis_py import Client, Reply
from postroom._stores.redis.replication import Replication, WaitFor
from postroom._stores.redis.scripts import WITHOUT_WRITES, Script
from postroom.errors import FeatureMissing, NotReplicated, RoomClosed

OLDEST_VERSION = (6, 2)
_log = logging.getLogger("postroom")

Semaphore: TypeAlias = asyncio.Semaphore | threading.Semaphore

_TRANSIENT = (
    exceptions.ConnectionError,  # includes: loading data, too many connections, no master known to Sentinel
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,  # a replica: another server is the master after a failover
    exceptions.ClusterDownError,  # includes MASTERDOWN
    exceptions.TryAgainError,
    exceptions.AskError,  # includes MOVED, which a client that is not a cluster client does not follow
    exceptions.SlotNotCoveredError,
    exceptions.RedisClusterException,
    exceptions.ClusterError,  # a slot that is being moved: both nodes redirect
    OSError,
    TimeoutError,
)
_PERMANENT = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""Subclasses of ConnectionError in redis-py."""
_WRONG_PASSWORD = re.compile("username-password|WRONGPASS|NOAUTH")
"""In the text of the error that a cluster client raises if no node accepts it."""
_TRANSIENT_CODES = re.compile(r"(^|-)(LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|BUSY|UNKILLABLE) ")
"""The first word of an error reply. Redis 6 has it behind a hyphen in the error of a script."""


class _Opened(NamedTuple):
    """A client of one process and event loop."""

    client: Client
    slots: Semaphore
    """Limits the commands under way."""
    preparing: Semaphore
    """Of 1: the check of the server runs once."""


class RedisClientVerbs:
    """The client, for both modes."""

    sharded = False
    """Whether wake-ups use sharded channels. Set by `ready`."""
    is_ready = False
    _semaphore: Callable[[int], Semaphore]
    _local: Callable[[Callable[[], _Opened]], PerProcess[_Opened]]
    """`PerLoop` or `PerProcess`: a client of redis-py must not be used in another event loop or after a fork."""

    def __init__(
        self,
        make: Callable[[], Client],
        *,
        name: str,
        cluster: bool,
        is_borrowed: bool = False,
        max_commands: int | None = None,
        replication: Replication = Replication(),  # noqa: B008 - frozen
        durability: Durability | None = None,
    ) -> None:
        """`make` makes a client of redis-py. `is_borrowed`: the user closes it.

        `max_commands` limits the commands under way, for a client whose pool raises instead of waiting for a
        connection.
        """
        self.name = name
        self._make = make
        self._cluster = cluster
        self._is_borrowed = is_borrowed
        self._max_commands = max_commands or 1_000_000
        self._replication = replication
        self._durability = durability or Durability(name)
        self._is_behind = False
        """Whether too few replicas acknowledged the last write."""
        self._clients: PerProcess[_Opened] = self._local(self._open)
        self._closed = False

    @property
    def is_cluster(self) -> bool:
        """Whether keys may be on different nodes."""
        return self._cluster

    def _open(self) -> _Opened:
        return _Opened(self._make(), self._semaphore(self._max_commands), self._semaphore(1))

    def _opened(self) -> _Opened:
        if self._closed:
            raise RoomClosed
        return self._clients.get()

    @verb
    def ready(self) -> Program[None]:
        """Checks version and durability of the server. Called before the first script."""
        client, _, preparing = self._opened()
        everywhere = EVERYWHERE if self._cluster else {}
        yield call(preparing.acquire)
        try:
            if not self.is_ready:
                version = yield from self._durability.check(client, everywhere)
                if version < OLDEST_VERSION:
                    raise FeatureMissing(
                        f"{self.name} is older than Redis {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}, which this needs"
                    )
                self.sharded = self._cluster and version >= (7,)
                self.is_ready = True
        finally:
            preparing.release()

    def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], wait: WaitFor) -> Program[Reply]:
        """Runs a script by its digest. If the server does not have the script, sends its text, which loads it.

        This is a program, and not a verb: it is part of the programs of the store.
        """
        try:
            return (yield from self._send(("EVALSHA", script.sha, len(keys), *keys, *arguments), keys, wait))
        except exceptions.NoScriptError:
            return (yield from self._send(("EVAL", script.text, len(keys), *keys, *arguments), keys, wait))

    @verb
    def run_all(self, script: Script, runs: Sequence[tuple[Sequence[bytes], Sequence[bytes]]]) -> Program[list[Reply]]:
        """Runs a script several times in one round trip, each time with other keys and arguments.

        On a cluster the runs may be on different nodes. It does not wait for replicas.
        """
        try:
            return (yield from self._send_all("EVALSHA", script.sha, runs))
        except exceptions.NoScriptError:
            return (yield from self._send_all("EVAL", script.text, runs))

    def _send_all(
        self, command: str, script: str, runs: Sequence[tuple[Sequence[bytes], Sequence[bytes]]]
    ) -> Program[list[Reply]]:
        client, slots, _ = self._opened()
        yield call(slots.acquire)
        try:
            pipeline = client.pipeline(transaction=False)
            for keys, arguments in runs:
                pipeline.execute_command(command, script, len(keys), *keys, *arguments)
            replies: list[Reply] = yield call(pipeline.execute, raise_on_error=False)
        finally:
            slots.release()
        for each in replies:
            if isinstance(each, Exception):
                raise each
        return replies

    @verb
    def execute(self, *command: object) -> Program[Reply]:
        return (yield from self._send(command, (), "nothing"))

    def _send(self, command: Sequence[object], keys: Sequence[bytes], wait: WaitFor) -> Program[Reply]:
        client, slots, _ = self._opened()
        yield call(slots.acquire)
        try:
            if wait == "nothing" or not self._replication.replicas:
                return (yield call(client.execute_command, *command))
            reply, acknowledged = yield from self._send_and_wait(client, command, keys)
        finally:
            slots.release()
        if reply not in WITHOUT_WRITES:
            self._check_replicas(acknowledged, wait)
        return reply

    def _send_and_wait(
        self, client: Client, command: Sequence[object], keys: Sequence[bytes]
    ) -> Program[tuple[Reply, int]]:
        """Returns the reply, and how many replicas have acknowledged the write."""
        wait = ("WAIT", self._replication.replicas, self._replication.timeout)
        if self._cluster:
            # WAIT covers the writes of the node up to the last command of its own connection. A cluster client does
            # not say which connection it used for the script, so a PING on the connection of the WAIT comes first.
            reply = yield call(client.execute_command, *command)
            replies = [reply, *(yield from self._on_node(client, keys[0], ("PING",), wait))]
        else:
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command(*command)
            pipeline.execute_command(*wait)
            replies = yield call(pipeline.execute, raise_on_error=False)
        for each in replies:
            if isinstance(each, Exception):
                raise each
        return replies[0], replies[-1]

    def _check_replicas(self, acknowledged: int, wait: WaitFor) -> None:
        was_behind, self._is_behind = self._is_behind, acknowledged < self._replication.replicas
        if not self._is_behind:
            return
        trouble = (
            f"{acknowledged} of {self._replication.replicas} replicas have acknowledged a write within "
            f"{self._replication.timeout} ms; it stands on the master, and may be lost with it"
        )
        if wait == "acknowledged":
            raise NotReplicated(trouble)
        if not was_behind:
            _log.warning("%s %s", self.name, trouble)

    def _on_node(self, client: Client, key: bytes, *commands: Sequence[object]) -> Program[list[Reply]]:
        """Runs commands on one connection to the node that has a key, and returns their replies."""
        raise NotImplementedError

    def is_transient(self, error: BaseException) -> bool:
        if isinstance(error, NotReplicated):  # the write is on the master: a retry would find it there
            return False
        if isinstance(error, _PERMANENT) or _WRONG_PASSWORD.search(str(error)):
            return False
        if isinstance(error, _TRANSIENT):
            return True
        return isinstance(error, exceptions.ResponseError) and _TRANSIENT_CODES.search(str(error)) is not None


def _sentinels(client: Client) -> Sequence[Any]:
    """Returns the clients of the Sentinels. They are closed with the client of the master."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return () if manager is None else manager.sentinels


async def close_client(client: Client) -> None:
    """Closes a client of async code, and the clients of its Sentinels."""
    for each in (client, *_sentinels(client)):
        await each.aclose()


class RedisClient(RedisClientVerbs, Async):
    """The client for async code."""

    _semaphore = asyncio.Semaphore
    _local = PerLoop

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._channels: set[str] = set()
        self._listeners = PerLoop(lambda: Listener(self._channels))
        # A cluster uses sharded channels, which redis-py before 8 cannot subscribe to.
        self.can_listen = not self._cluster or hasattr(PubSub, "ssubscribe")

    def _on_node(self, client: Client, key: bytes, *commands: Sequence[object]) -> Program[list[Reply]]:
        pipeline = [PipelineCommand(position, *command) for position, command in enumerate(commands)]
        yield call(client.get_node_from_key(key).execute_pipeline, pipeline)
        return [command.result for command in pipeline]

    def listen(self, channel: str) -> None:
        """Adds a channel to those that `wait` listens to."""
        self._channels.add(channel)
        self._listeners.get().channels_changed()

    async def wait(self) -> frozenset[str]:
        """Waits for wake-ups: see `postroom.spi.Waker`."""
        if not self.is_ready:
            await self.ready()
        client = self._opened().client
        return await self._listeners.get().wait(client, sharded=self.sharded)

    async def close(self) -> None:
        self._closed = True
        listener, opened = self._listeners.pop(), self._clients.pop()
        if listener is not None:
            await listener.close()
        if opened is not None and not self._is_borrowed:
            await close_client(opened.client)


class SyncRedisClient(RedisClientVerbs, Sync):
    """The client for sync code, which receives no wake-ups."""

    can_listen = False
    _semaphore = threading.Semaphore
    _local = PerProcess

    def _on_node(self, client: Client, key: bytes, *commands: Sequence[object]) -> Program[list[Reply]]:
        yield from ()
        pipeline = client.get_redis_connection(client.get_node_from_key(key)).pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Reply] = pipeline.execute(raise_on_error=False)
        return replies

    def listen(self, channel: str) -> None:
        """Does nothing: sync code has no workers."""

    def close(self) -> None:
        self._closed = True
        opened = self._clients.pop()
        if opened is not None and not self._is_borrowed:
            for client in (opened.client, *_sentinels(opened.client)):
                client.close()
