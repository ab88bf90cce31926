"""Joins under load: the numbers are those of the steps, and each continuation is handled once.

Four workers on connections of their own take, settle, report and replay steps, while four producers attach them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from tools.servers.redis import RedisServer
from tools.servers.redis_cluster import RedisCluster

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom._stores.redis.layout import KEYS, box_keys
from postroom.spi import (
    Box,
    ClaimRequest,
    Counts,
    Draft,
    Filter,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinWait,
    Key,
    Purge,
    Settlement,
    State,
)
from postroom.testing.conformance.base import seconds
from tests.redis import open_at
from tests.redis_chaos.workload import CHAOS, new_prefix
from tests.redis_invariants import complaints

BOX = Box("outbox", "joins")
SOURCE, STEP, CONTINUED = "s", "step", "continued"
JOINS, STEPS, WORKERS = 50, 20, 4
FOLLOW_UP = FollowUp(CONTINUED, "", "text")


@pytest.fixture(params=["server", "cluster"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A URL, and a client for the node that has the box."""
    if request.param == "server":
        with RedisServer() as server, redis.Redis.from_url(server.url()) as client:
            yield server.url(), client
        return
    with RedisCluster(3) as cluster:
        addresses = [node.address for node in cluster.servers]
        url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in addresses)
        with redis.RedisCluster(*addresses[0]) as client:
            yield url, client


@pytest.fixture
async def stores(address: tuple[str, Any], prefix: str) -> AsyncIterator[list[Any]]:
    opened = [open_at(address[0], "async", prefix=prefix) for _ in range(2 * WORKERS)]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
def prefix() -> str:
    return new_prefix()


@dataclass
class Run:
    """What the tasks share."""

    chance: random.Random
    attached: dict[str, UUID] = field(default_factory=dict)
    continued: Counter[str] = field(default_factory=Counter)
    """Continuations by their message id, which is that of the join: how often one was settled as done."""

    async def produce(self, store: Any, joins: list[tuple[int, UUID]]) -> None:
        """Starts joins of three kinds, and attaches their steps: with their puts, after them, and some twice."""
        for number, join in joins:
            is_open = number % 3 == 0
            await store.start_join(BOX, JoinDraft(join, "tenant", None if is_open else STEPS))
            wait = JoinWait(join, True, FOLLOW_UP, FOLLOW_UP if has_follow_up(number) else None)
            when = self.chance.randrange(STEPS + 1)
            for step in range(STEPS):
                if step == when:
                    await self.wait(store, wait)
                name = f"{number}-{step}"
                if self.chance.random() < 0.5:
                    await store.put(BOX, [Draft(SOURCE, name, STEP, join=join)])
                else:
                    await store.put(BOX, [Draft(SOURCE, name, STEP)])
                    await store.attach_steps(BOX, join, [Key(SOURCE, name)] * 2)
                self.attached[name] = join
            if is_open:
                await store.seal_join(BOX, join)
            await self.wait(store, wait)

    async def wait(self, store: Any, wait: JoinWait) -> None:
        await store.put_wait(BOX, Draft(SOURCE, str(wait.join), WAIT_TOPIC, on_duplicate="reject"), wait)

    async def work(self, store: Any) -> None:
        """Takes messages until all continuations are handled."""
        owner = uuid4()
        held: list[Any] = []
        while len(self.continued) < JOINS:
            settlements = [self.settlement(message) for message in held]
            request = ClaimRequest(owner, seconds(30), self.chance.randint(1, 20))
            settled, claimed = await store.exchange(BOX, settlements, request)
            for message, settlement, is_kept in zip(held, settlements, settled, strict=True):
                if is_kept and settlement.verdict == "done" and message.topic == CONTINUED:
                    self.continued[message.message_id] += 1
            held = claimed
            assert all(message.topic != WAIT_TOPIC for message in held)
            await self.disturb(store)

    def settlement(self, message: Any) -> Settlement:
        fate = self.chance.random()
        if fate < 0.15 and message.topic == STEP:
            return Settlement.dead(message.claim, error="bad")
        if fate < 0.3:
            return Settlement.retry(message.claim, delay=seconds(0))
        return Settlement.done(message.claim)

    async def disturb(self, store: Any) -> None:
        """Reports a step, twice; and replays dead letters: failed steps, and continuations of failed joins."""
        if self.attached and self.chance.random() < 0.3:
            name = self.chance.choice(list(self.attached))
            # A join without a follow-up for its failure must be able to complete after replays.
            has_failed = has_follow_up(int(name.partition("-")[0])) and self.chance.random() < 0.3
            for _ in range(2):
                await store.report_step(BOX, self.attached[name], Key(SOURCE, name), failed=has_failed)
        if self.chance.random() < 0.2:
            await store.replay(BOX, Filter(states=frozenset({State.DEAD}), limit=50))


def has_follow_up(number: int) -> bool:
    """Returns True if the join has a follow-up for its failure."""
    return number % 2 == 1


@pytest.mark.parametrize("seed", range(CHAOS))
async def test_joins_under_load(address: tuple[str, Any], prefix: str, stores: list[Any], seed: int) -> None:
    run, client, store = Run(random.Random(seed)), address[1], stores[0]
    joins = {number: uuid4() for number in range(JOINS)}
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        for worker in range(WORKERS):
            tasks.create_task(run.produce(stores[worker], list(joins.items())[worker::WORKERS]))
            tasks.create_task(run.work(stores[WORKERS + worker]))
    for message in await store.claim(BOX, ClaimRequest(uuid4(), seconds(30), JOINS * STEPS)):
        assert message.topic == STEP, "a continuation was sent twice"
    assert run.continued == dict.fromkeys(map(str, joins.values()), 1)
    assert whole(client, prefix, await store.counts(BOX)) == []
    found = {join.id: join for join in await store.find_joins(BOX, JoinFilter(limit=JOINS + 1))}
    assert set(found) == set(joins.values())
    for number, id_ in joins.items():
        join, steps = found[id_], await store.find_steps(BOX, id_)
        assert len(steps) == join.attached_steps == join.completed_steps + join.failed_steps == STEPS
        assert join.status is (JoinStatus.FAILED if join.failed_steps else JoinStatus.COMPLETED)
        assert has_follow_up(number) or join.status is JoinStatus.COMPLETED
    assert {join.status for join in found.values()} == {JoinStatus.COMPLETED, JoinStatus.FAILED}, "too calm"
    while await store.purge(BOX, Purge(State.DONE, seconds(0))):
        pass
    assert await store.find_joins(BOX, JoinFilter()) == []
    keys = dict(zip(KEYS, box_keys(prefix, BOX.key), strict=True))
    left = [name for name in KEYS[KEYS.index("joins") :] if client.exists(keys[name])]
    assert left == []


def whole(client: Any, prefix: str, counts: Counts) -> list[str]:
    return complaints(client, prefix, BOX.key, counts=counts, now=time.time_ns() // 1000)
