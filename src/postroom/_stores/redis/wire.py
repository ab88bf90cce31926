"""How a script gets to a server: on redis-py's clients of either colour, for one server, Sentinel's or a cluster."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis import exceptions
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import PipelineCommand

from postroom._kernel.local import PerLoop, PerProcess
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.redis.durability import Durability
from postroom._stores.redis.listener import Listener
from postroom._stores.redis.scripts import AMBIGUOUS, NEEDS_IDS, Script
from postroom._stores.redis.waiting import Wait
from postroom.errors import FeatureMissing, NotReplicated, RoomClosed

OLDEST = (6, 2)
_log = logging.getLogger("postroom")

_PASSING = (
    exceptions.ConnectionError,  # also: loading its data, too many connections, Sentinel knows no master
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,  # a replica: after a failover, another server is the master
    exceptions.ClusterDownError,  # also: MASTERDOWN
    exceptions.TryAgainError,
    exceptions.AskError,  # also: MOVED, where a client does not follow by itself
    exceptions.SlotNotCoveredError,
    exceptions.RedisClusterException,
    exceptions.ClusterError,  # a slot that is half moved: sent back and forth
    OSError,
    TimeoutError,
)
_LASTING = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""These are connection errors to redis-py, and do not pass by themselves."""
_WRONG_PASSWORD = re.compile("username-password|WRONGPASS|NOAUTH")
"""On a cluster it is only told in words: no node could be asked."""
_PASSING_WORDS = re.compile(r"(^|-)(LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|BUSY|UNKILLABLE) ")
"""As they begin an answer; Redis 6 also has them within the answer of a script, after a hyphen."""


@dataclass(frozen=True)
class Replication:
    """How many replicas must have a write before its verb answers, and for how many milliseconds that is awaited."""

    replicas: int = 0
    timeout: int = 1000


class _Opened(NamedTuple):
    """A client, in the process and the event loop that it belongs to."""

    client: Any
    gate: Any
    """So many commands at once."""
    asking: Any
    """One at a time asks what the server is."""


class WireVerbs:
    """What both colours share."""

    sharded = False
    """Whether wake-ups go by sharded channels. Known once it is ready."""
    is_ready = False
    _semaphore: Callable[[int], Any]
    _local: type[PerProcess[Any]]
    """Where a client belongs to."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        name: str,
        cluster: bool,
        theirs: bool = False,
        most: int | None = None,
        replication: Replication = Replication(),  # noqa: B008 - frozen
        durability: Durability | None = None,
    ) -> None:
        """`make` makes a client of redis-py's; `theirs`: it is the user's, who closes it.

        `most`: so many commands at once, for a client that does not wait for a connection but fails.
        """
        self.name = name
        self._make = make
        self._cluster = cluster
        self._theirs = theirs
        self._most = most or 1_000_000
        self._replication = replication
        self._durability = durability or Durability(name)
        self._behind = False
        """Whether replicas did not keep up when this was last asked."""
        self._everywhere: PerProcess[_Opened] = self._local(self._open)
        self._closed = False

    def _open(self) -> _Opened:
        return _Opened(self._make(), self._semaphore(self._most), self._semaphore(1))

    def _opened(self) -> _Opened:
        if self._closed:
            raise RoomClosed
        return self._everywhere.get()

    @verb
    def ready(self) -> Program[None]:
        """Before the first script: what the server is, and whether it keeps what it is given."""
        client, _, one_at_a_time = self._opened()
        everywhere = {"target_nodes": "primaries"} if self._cluster else {}
        yield call(one_at_a_time.acquire)
        try:
            if not self.is_ready:
                version = yield from self._durability.check(client, everywhere)
                if version < OLDEST:
                    raise FeatureMissing(f"{self.name} is older than Redis {OLDEST[0]}.{OLDEST[1]}, which this needs")
                self.sharded = self._cluster and version >= (7,)
                self.is_ready = True
        finally:
            one_at_a_time.release()

    @verb
    def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], wait: Wait) -> Program[Any]:
        """Run a script by its name; where the server does not know it (any more), by its text, which makes it known."""
        try:
            return (yield from self._send(("EVALSHA", script.sha, len(keys), *keys, *arguments), keys, wait))
        except exceptions.NoScriptError:
            return (yield from self._send(("EVAL", script.text, len(keys), *keys, *arguments), keys, wait))

    @verb
    def execute(self, *command: Any) -> Program[Any]:
        return (yield from self._send(command, (), "need not"))

    def _send(self, command: Sequence[Any], keys: Sequence[bytes], wait: Wait) -> Program[Any]:
        client, gate, _ = self._opened()
        yield call(gate.acquire)
        try:
            if wait == "need not" or not self._replication.replicas:
                return (yield call(client.execute_command, *command))
            answer, acknowledged = yield from self._send_and_wait(client, command, keys)
        finally:
            gate.release()
        if answer not in (NEEDS_IDS, AMBIGUOUS):  # then it has written nothing
            self._judge(acknowledged, wait)
        return answer

    def _send_and_wait(self, client: Any, command: Sequence[Any], keys: Sequence[bytes]) -> Program[tuple[Any, int]]:
        wait = ("WAIT", self._replication.replicas, self._replication.timeout)
        if self._cluster:
            # A cluster's client does not tell which connection it used. WAIT waits for all that was written on the
            # node before the last command of its own connection, whatever that was.
            answer = yield call(client.execute_command, *command)
            answers = [answer, *(yield from self._on_node(client, keys[0], ("PING",), wait))]
        else:
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command(*command)
            pipeline.execute_command(*wait)
            answers = yield call(pipeline.execute, raise_on_error=False)
        for each in answers:
            if isinstance(each, Exception):
                raise each
        return answers[0], answers[-1]

    def _judge(self, acknowledged: int, wait: Wait) -> None:
        was_behind, self._behind = self._behind, acknowledged < self._replication.replicas
        if not self._behind:
            return
        trouble = (
            f"{acknowledged} of {self._replication.replicas} replicas have acknowledged a write within "
            f"{self._replication.timeout} ms; it stands on the master, and may be lost with it"
        )
        if wait == "must":
            raise NotReplicated(trouble)
        if not was_behind:
            _log.warning("%s %s", self.name, trouble)

    def _on_node(self, client: Any, key: bytes, *commands: Sequence[Any]) -> Program[list[Any]]:
        """Run commands on one connection to the node that has a key."""
        raise NotImplementedError

    def is_transient(self, error: BaseException) -> bool:
        if isinstance(error, NotReplicated):  # to repeat a write that stands would only find it there
            return False
        if isinstance(error, _LASTING) or _WRONG_PASSWORD.search(str(error)):
            return False
        if isinstance(error, _PASSING):
            return True
        return isinstance(error, exceptions.ResponseError) and _PASSING_WORDS.search(str(error)) is not None


def _sentinels(client: Any) -> Sequence[Any]:
    """Clients that only ask who the master is. They live as long as the client of the master."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return () if manager is None else manager.sentinels


class Wire(WireVerbs, Async):
    """For async code."""

    _semaphore = asyncio.Semaphore
    _local = PerLoop

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._wanted: set[str] = set()
        self._listeners = PerLoop(lambda: Listener(self._wanted))
        # A cluster's wake-ups are sharded, which redis-py before 8 cannot hear.
        self.hears = not self._cluster or hasattr(PubSub, "ssubscribe")

    def _on_node(self, client: Any, key: bytes, *commands: Sequence[Any]) -> Program[list[Any]]:
        pipeline = [PipelineCommand(place, *command) for place, command in enumerate(commands)]
        yield call(client.get_node_from_key(key).execute_pipeline, pipeline)
        return [command.result for command in pipeline]

    def want(self, channel: str) -> None:
        """Wake-ups of this channel are wanted."""
        self._wanted.add(channel)
        self._listeners.get().look_again()

    async def wait(self) -> frozenset[str]:
        """As `Waker` says."""
        if not self.is_ready:
            await self.ready()
        client = self._opened().client
        return await self._listeners.get().wait(client, sharded=self.sharded)

    async def close(self) -> None:
        self._closed = True
        listener, opened = self._listeners.pop(), self._everywhere.pop()
        if listener is not None:
            await listener.close()
        if opened is not None and not self._theirs:
            for client in (opened.client, *_sentinels(opened.client)):
                await client.aclose()


class SyncWire(WireVerbs, Sync):
    """For sync code."""

    hears = False
    _semaphore = threading.Semaphore
    _local = PerProcess

    def _on_node(self, client: Any, key: bytes, *commands: Sequence[Any]) -> Program[list[Any]]:
        yield from ()
        pipeline = client.get_redis_connection(client.get_node_from_key(key)).pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        return answers

    def want(self, channel: str) -> None:
        """Nobody listens here."""

    def close(self) -> None:
        self._closed = True
        opened = self._everywhere.pop()
        if opened is not None and not self._theirs:
            for client in (opened.client, *_sentinels(opened.client)):
                client.close()
