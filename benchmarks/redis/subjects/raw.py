"""The limit: a queue with leases, fences and deduplication, as tight as redis-py and a few lines of Lua allow.

Three scripts: put decides by its key whether a message is new; claim takes ids from a list, leases them and returns the
payloads; ack checks the fence and notes what is done. The ack of a batch and the next claim travel together, and two
connections alternate, so that the server works while the client reads. It knows one box and no due times, no order, no
attempts and no topics, never looks for leases that have passed, decodes nothing and builds no objects.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from benchmarks.common.subject import Span, Subject
from benchmarks.workload import Item, chunks

LANES = 2
MOST = 2_000
"""Messages that one script puts: Lua takes some 8,000 values at once."""
LEASE = 30_000

NAMES = ("sequence", "known", "message", "ready", "lease", "fence", "done")
KEYS = [f"{{raw}}:{name}" for name in NAMES]

# A message is (message id, payload). `known` is what deduplicates.
_PUT = """
local known, message, ready = KEYS[2], KEYS[3], KEYS[4]
local id = redis.call('INCRBY', KEYS[1], #ARGV / 2) - #ARGV / 2
local fields, ids = {}, {}
for i = 1, #ARGV, 2 do
    id = id + 1
    if redis.call('HSETNX', known, ARGV[i], id) == 1 then
        fields[#fields + 1] = id
        fields[#fields + 1] = ARGV[i + 1]
        ids[#ids + 1] = id
    end
end
if #ids > 0 then
    redis.call('HSET', message, unpack(fields))
    redis.call('RPUSH', ready, unpack(ids))
end
return #ids
"""

# One fence for all of a batch: it only has to be greater than any before.
_CLAIM = """
local ids = redis.call('LPOP', KEYS[4], ARGV[1])
if not ids then return {} end
local now = redis.call('TIME')
local until_ = now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[2]
local fence = redis.call('INCR', KEYS[1])
local leases, fences = {}, {}
for i, id in ipairs(ids) do
    leases[2 * i - 1], leases[2 * i] = until_, id
    fences[2 * i - 1], fences[2 * i] = id, fence
end
redis.call('ZADD', KEYS[5], unpack(leases))
redis.call('HSET', KEYS[6], unpack(fences))
return {fence, ids, redis.call('HMGET', KEYS[3], unpack(ids))}
"""

# ARGV: the fence, then the ids.
_ACK = """
local held, kept = redis.call('HMGET', KEYS[6], unpack(ARGV, 2)), {}
for i, fence in ipairs(held) do
    if fence == ARGV[1] then kept[#kept + 1] = ARGV[i + 1] end
end
if #kept > 0 then
    redis.call('ZREM', KEYS[5], unpack(kept))
    redis.call('HDEL', KEYS[6], unpack(kept))
    redis.call('HDEL', KEYS[3], unpack(kept))
    redis.call('RPUSH', KEYS[7], unpack(kept))
end
return #kept
"""


class Raw(Subject):
    async def install(self) -> None:
        """There are no tables."""

    async def open(self) -> None:
        self._lanes = [Redis.from_url(self.url, single_connection_client=True) for _ in range(LANES)]
        loads = [await self._lanes[0].script_load(script) for script in (_PUT, _CLAIM, _ACK)]
        self._put, self._claim, self._ack = loads

    async def send_one(self, item: Item) -> None:
        await self.send_bulk([item])

    async def send_bulk(self, items: list[Item]) -> None:
        pipeline = self._lanes[0].pipeline(transaction=False)
        for chunk in chunks(items, MOST):
            arguments = [part for item in chunk for part in (item.message_id, item.text)]
            pipeline.evalsha(self._put, len(KEYS), *KEYS, *arguments)
        _expect(sum(await pipeline.execute()), len(items))

    async def drain(self, batch: int, expected: int | None) -> Span:
        return await self.take(batch, None)

    async def take(self, batch: int, count: int | None) -> Span:
        """As many as are asked for, or all."""
        gc.collect()
        began = time.monotonic()
        budget = _Budget(count)
        handled = await asyncio.gather(*(self._run(lane, batch, budget) for lane in self._lanes))
        return Span(began, time.monotonic(), sum(handled))

    async def _run(self, lane: Redis, batch: int, budget: _Budget) -> int:
        handled = 0
        held: list[Any] = []
        while True:
            pipeline = lane.pipeline(transaction=False)
            if held:
                pipeline.evalsha(self._ack, len(KEYS), *KEYS, held[0], *held[1])
            if wanted := budget.take(batch):
                pipeline.evalsha(self._claim, len(KEYS), *KEYS, wanted, LEASE)
            replies = await pipeline.execute() if held or wanted else []
            if held:
                _expect(replies[0], len(held[1]))
            held = replies[-1] if wanted else []
            if not held:
                return handled
            handled += len(held[1])

    async def serve(self, handled: Callable[[], None]) -> None:
        raise NotImplementedError("the raw loop does not wait for messages")

    async def stop_serving(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.aclose()


class _Budget:
    """What is left to be claimed by all lanes; without a number, everything."""

    def __init__(self, count: int | None) -> None:
        self._left = count

    def take(self, batch: int) -> int:
        if self._left is None:
            return batch
        taken = min(batch, self._left)
        self._left -= taken
        return taken


def _expect(changed: int, wanted: int) -> None:
    """A benchmark that changes nothing is fast, and worthless."""
    if changed != wanted:
        raise AssertionError(f"the raw loop changed {changed} messages instead of {wanted}")
