"""Joins on Redis: what other stores do in another way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from postroom._kernel.joins import WAIT_TOPIC, FollowUp
from postroom._stores.redis.layout import KEYS, box_keys
from postroom.errors import JoinEnded, JoinFull, JoinNotFound, MessageNotFound
from postroom.spi import (
    Box,
    ClaimRequest,
    Draft,
    Filter,
    JoinDraft,
    JoinFilter,
    JoinStatus,
    JoinWait,
    Key,
    Purge,
    ReceiptStatus,
    Retention,
    Settlement,
    State,
)
from postroom.testing import FrozenClock
from postroom.testing.conformance.base import ALICE, seconds
from tests.redis import new_prefix, open_at, server
from tests.redis_invariants import Snapshot, complaints

BOX = Box("outbox", "box")
REQUEST = ClaimRequest(ALICE, seconds(30), 10_000)
OF_JOINS = KEYS[KEYS.index("joins") :]


@pytest.fixture
def prefix() -> str:
    return new_prefix()


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
async def store(prefix: str, clock: FrozenClock) -> AsyncIterator[Any]:
    opened = open_at(server(), "async", prefix=prefix, clock=clock)
    yield opened
    await opened.close()


async def start(store: Any, expected: int | None = 1, box: Box = BOX) -> UUID:
    join = uuid4()
    await store.start_join(box, JoinDraft(join, "tenant", expected))
    return join


async def wait(store: Any, join: UUID, on_complete: FollowUp | None = None, box: Box = BOX) -> Any:
    draft = Draft("s", str(join), WAIT_TOPIC, on_duplicate="reject")
    return await store.put_wait(box, draft, JoinWait(join, on_complete=on_complete))


async def settle_all(store: Any, *, failed: bool = False) -> int:
    claimed = await store.claim(BOX, REQUEST)
    proofs = [message.claim for message in claimed]
    await store.settle(
        BOX, [Settlement.dead(proof, error="bad") if failed else Settlement.done(proof) for proof in proofs]
    )
    return len(claimed)


def keys_of_joins(prefix: str) -> list[str]:
    keys = dict(zip(KEYS, box_keys(prefix, BOX.key), strict=True))
    with redis.Redis.from_url(server()) as client:
        return [name for name in OF_JOINS if client.exists(keys[name])]


async def test_a_box_without_joins_has_no_keys_of_joins(store: Any, prefix: str) -> None:
    await store.put(BOX, [Draft("s", "1"), Draft("s", "2")])
    assert await settle_all(store) == 2
    assert keys_of_joins(prefix) == []


async def test_a_refused_verb_writes_nothing(store: Any, prefix: str) -> None:
    """All keys of the box are as before."""
    full, ended = await start(store), await start(store)
    await store.put(BOX, [Draft("s", "step", join=full), Draft("s", "free")])
    await store.cancel_join(BOX, ended)
    with redis.Redis.from_url(server()) as client:
        before = Snapshot.take(client, prefix, BOX.key, now=0)
        steps = [Key("s", "free"), Key("s", "none")]
        for error, verb in (
            (JoinFull, lambda: store.put(BOX, [Draft("s", "new"), Draft("s", "newer", join=full)])),
            (JoinEnded, lambda: store.put(BOX, [Draft("s", "new", join=ended)])),
            (JoinNotFound, lambda: store.put(BOX, [Draft("s", "new"), Draft("s", "newer", join=uuid4())])),
            (JoinFull, lambda: store.attach_steps(BOX, full, [Key("s", "step"), Key("s", "free")])),
            (MessageNotFound, lambda: store.attach_steps(BOX, full, steps)),
            (MessageNotFound, lambda: store.report_step(BOX, full, Key("s", "free"), failed=True)),
            (JoinEnded, lambda: wait(store, ended)),
            (JoinEnded, lambda: store.seal_join(BOX, full)),
        ):
            with pytest.raises(error):
                await verb()
            assert Snapshot.take(client, prefix, BOX.key, now=0) == before


async def test_a_large_join_is_purged_in_pieces(store: Any, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom._stores.redis.store.MAX_CHANGES", 10)
    large, small = await start(store, 45), await start(store, 1)
    await store.put(BOX, [Draft("s", str(number), join=large) for number in range(45)])
    await store.attach_steps(BOX, small, [Key("s", "7")])
    for join in (large, small):
        await wait(store, join)
    assert await settle_all(store) == 45
    assert await settle_all(store) == 0
    assert await store.purge(BOX, Purge(State.DONE, seconds(0), limit=10)) == 10
    with pytest.raises(JoinNotFound):
        await store.find_steps(BOX, large)
    with redis.Redis.from_url(server()) as client:
        assert complaints(client, prefix, BOX.key) == []
    while await store.purge(BOX, Purge(State.DONE, seconds(0), limit=10)):
        pass
    assert await store.find_joins(BOX, JoinFilter()) == []
    assert keys_of_joins(prefix) == []


async def test_old_joins_go_without_a_janitor(prefix: str, clock: FrozenClock, store: Any) -> None:
    join = await start(store)
    await store.put(BOX, [Draft("s", "1", join=join)])
    await wait(store, join)
    assert [await settle_all(store) for _ in range(2)] == [1, 0]
    clock.advance(seconds(31 * 24 * 3600))
    await store.put(BOX, [Draft("s", "2")])
    assert await store.find_joins(BOX, JoinFilter()) == []
    assert keys_of_joins(prefix) == []


async def test_a_failed_join_stays_as_long_as_its_dead_letter(store: Any, prefix: str) -> None:
    """A replay of the dead letter looks at the join again."""
    join = await start(store)
    await store.put(BOX, [Draft("s", "1", join=join)])
    await wait(store, join, FollowUp("done", "", "text"))
    assert [await settle_all(store, failed=True), await settle_all(store)] == [1, 0]
    await store.purge(BOX, Purge(State.DONE, seconds(0)))
    [found] = await store.find_joins(BOX, JoinFilter())
    assert found.status is JoinStatus.FAILED
    assert len(await store.replay(BOX, Filter(states=frozenset({State.DEAD})))) == 2
    assert [message.message_id for message in await store.claim(BOX, REQUEST)] == ["1"]
    await store.mark(BOX, [Key("s", "1")], "dead")
    await store.claim(BOX, REQUEST)
    with redis.Redis.from_url(server()) as client:
        assert complaints(client, prefix, BOX.key) == []
    await store.purge(BOX, Purge(State.DONE, seconds(0)))
    assert await store.purge(BOX, Purge(State.DEAD, seconds(0))) == 2
    await store.purge(BOX, Purge(State.DONE, seconds(0)))
    assert keys_of_joins(prefix) == []


async def test_a_join_has_one_continuation_after_the_dedup_window(store: Any, clock: FrozenClock) -> None:
    box = Box("outbox", "box", retention=Retention(dedup_window=seconds(10)))
    join = await start(store, box=box)
    first = await wait(store, join, box=box)
    clock.advance(seconds(60))
    again = await wait(store, join, box=box)
    assert (again.status, again.id) == (ReceiptStatus.DUPLICATE, first.id)


async def test_new_content_does_not_make_a_continuation_claimable(store: Any, clock: FrozenClock) -> None:
    join = await start(store)
    await wait(store, join)
    for due in (None, clock.now() + seconds(1)):
        await store.put(BOX, [Draft("s", str(join), "other", "content", due=due)])
    clock.advance(seconds(5))
    assert await store.claim(BOX, REQUEST) == []


async def test_a_join_is_started_once(store: Any) -> None:
    """The store repeats a script whose reply was lost."""
    draft = JoinDraft(uuid4(), "tenant", 1)
    await store.start_join(BOX, draft)
    await store.put(BOX, [Draft("s", "1", join=draft.id)])
    await store.start_join(BOX, draft)
    assert [join.attached_steps for join in await store.find_joins(BOX, JoinFilter())] == [1]
