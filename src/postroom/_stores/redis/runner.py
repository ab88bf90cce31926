"""Runs scripts on the keys of a box."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom._kernel.clock import Clock, to_microseconds
from postroom._kernel.program import Program, call
from postroom._stores.redis import codec
from postroom._stores.redis.layout import BLOCK, box_keys, boxes_key, channel, ids_key
from postroom._stores.redis.redis_py import Reply
from postroom._stores.redis.replication import WaitFor
from postroom._stores.redis.scripts import NEEDS_IDS, script
from postroom.spi import Box, Features

if TYPE_CHECKING:
    from postroom._stores.redis.client import RedisClient, SyncRedisClient


class _BoxArguments(NamedTuple):
    """The arguments that every script of a box gets."""

    box: Box
    keys: tuple[bytes, ...]
    policy: bytes


class ScriptRunner:
    """Runs scripts, for both modes."""

    _listens = False
    """Whether this mode has workers, which listen for wake-ups."""

    def __init__(
        self, client: RedisClient | SyncRedisClient, *, prefix: str, clock: Clock | None = None, notify: bool = True
    ) -> None:
        self.name = client.name
        self.features = Features(
            durable=True,
            transactional=False,
            concurrent=True,
            notify=self._listens and notify and client.can_listen,
            joins=True,
            guard=True,
        )
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._notify = notify
        self._box_arguments: dict[str, _BoxArguments] = {}

    def _arguments_of(self, box: Box) -> _BoxArguments:
        arguments = self._box_arguments.get(box.key)
        if arguments is None or arguments.box is not box:
            policy = codec.policy_arguments(box)
            if self._notify:
                sharded = self._client.sharded
                wakeups = channel(self._prefix, box.key, sharded=sharded)
                policy |= {"channel": wakeups, "publish": "SPUBLISH" if sharded else "PUBLISH"}
                self._client.listen(wakeups)
            keys = box_keys(self._prefix, box.key, joins=box.can_have_joins)
            arguments = _BoxArguments(box, keys, codec.encode(policy))
            self._box_arguments[box.key] = arguments
        return arguments

    def _run(
        self, name: str, box: Box, arguments: object, *more: bytes, wait: WaitFor = "acknowledged"
    ) -> Program[Reply]:
        """Runs a script and returns its reply. lib/base.lua describes the arguments."""
        if not self._client.is_ready:
            yield call(self._client.ready)
        _, keys, policy = self._arguments_of(box)
        given = (self._now(), policy, codec.encode(arguments), *more)
        return (yield from self._client.run(script(name), keys, given, wait))

    def _now(self) -> bytes:
        """Returns the time as an argument of scripts. Empty: they use the clock of the server."""
        return b"" if self._clock is None else str(to_microseconds(self._clock.now())).encode()

    def _run_with_ids(self, name: str, box: Box, arguments: codec.Arguments, contents: bytes = b"") -> Program[Reply]:
        """Runs a script that needs ids. If the box has too few ids left, fetches a block and runs it again."""
        while (reply := (yield from self._run(name, box, arguments, contents))) == NEEDS_IDS:
            size = max(BLOCK, len(arguments.get("message_ids", ())))
            # Only a box with ids has messages, so this is where `boxes` learns of it.
            yield call(self._client.execute, "SADD", boxes_key(self._prefix), box.key)
            last = yield call(self._client.execute, "INCRBY", ids_key(self._prefix), size)
            arguments = {**arguments, "block": (last - size, size)}
        return reply
