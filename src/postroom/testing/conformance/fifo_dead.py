"""Dead messages in FIFO groups: whether the group continues, and where a replayed message is in its line."""

from __future__ import annotations

from typing import Literal

import pytest

from postroom.spi import Delivery, Filter, Key, Purge, Reaped, State
from postroom.testing.conformance.base import (
    BOB,
    LEASE,
    SOURCE,
    Elapse,
    OpenBox,
    Suite,
    draft,
    names,
    seconds,
)
from postroom.testing.conformance.fifo import member


class FifoDeadLetterConformance(Suite):
    """Boxes with `order.fifo`, for `order.on_dead` and messages that die in a group."""

    async def test_a_dead_head_lets_its_group_go_on(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(member("1"), member("2"))
        await box.fail(*await box.claim(1))
        assert names(await box.claim()) == ["2"]

    async def test_a_dead_head_may_block_its_group(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(member("1"), member("2"), member("x", "other"))
        await box.fail(*await box.claim(1))
        assert names(await box.claim()) == ["x"]
        await elapse(10_000)
        await box.put(member("3"))
        assert names(await box.claim()) == ["x"]

    async def test_a_blocked_group_goes_on_when_its_head_is_replayed(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(member("1"), member("2"))
        await box.fail(*await box.claim(1))
        assert list(await box.store.replay(box.box, Filter(group="g"))) == [Key(SOURCE, "1")]
        assert names(await box.claim()) == ["1", "2"]

    async def test_a_blocked_group_goes_on_when_its_head_is_purged(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(member("1"), member("2"))
        await box.fail(*await box.claim(1))
        assert await box.store.purge(box.box, Purge(State.DEAD, seconds(0))) == 1
        assert names(await box.claim()) == ["2"]

    async def test_a_blocked_group_goes_on_when_its_head_is_marked_done(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(member("1"), member("2"))
        await box.fail(*await box.claim(1))
        assert list(await box.store.mark(box.box, [Key(SOURCE, "1")], "processed")) == [True]
        assert names(await box.claim()) == ["2"]

    async def test_a_blocked_group_goes_on_when_its_head_is_skipped(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(member("1"), member("2"))
        await box.fail(*await box.claim(1))
        before = await box.get("1")
        assert list(await box.store.mark(box.box, [Key(SOURCE, "1")], "skipped")) == [True]
        assert list(await box.store.mark(box.box, [Key(SOURCE, "1")], "skipped")) == [False]
        assert await box.get("1") == before
        assert names(await box.claim()) == ["2"]

    async def test_only_what_blocks_can_be_skipped(self, open_box: OpenBox) -> None:
        strict, plain = open_box(name="strict", fifo=True, on_dead="block"), open_box(name="plain", fifo=True)
        for box in (strict, plain):
            await box.finish(member("done"))
            await box.bury(draft("dead, without a group"))
        await plain.bury(member("dead", "other"))
        for box in (strict, plain):
            await box.put(member("waiting"))
        keys = [Key(SOURCE, name) for name in ["done", "dead, without a group", "waiting", "dead", "unknown"]]
        for box in (strict, plain):
            before = await box.find()
            assert list(await box.store.mark(box.box, keys, "skipped")) == [False] * 5
            assert await box.find() == before

    async def test_what_blocks_can_be_listed(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.bury(member("g1"), member("h1", "h"), draft("ungrouped"))
        await box.put(member("g2"))
        dead = frozenset({State.DEAD})
        assert names(await box.find(states=dead, blocking=True)) == ["g1", "h1"]
        assert names(await box.find(states=dead, blocking=True, group="h")) == ["h1"]
        await box.store.mark(box.box, [Key(SOURCE, "g1")], "skipped")
        assert names(await box.find(states=dead, blocking=True)) == ["h1"]
        assert names(await box.find(states=dead)) == ["g1", "h1", "ungrouped"]

    async def test_only_the_dead_block(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.bury(member("1"), draft("ungrouped"))
        await box.put(member("2"))
        dead = await box.find(states=frozenset({State.DEAD}))
        assert names(await box.find(blocking=True)) == ["1"]
        assert names(await box.find(blocking=True, ids=tuple(message.id for message in dead))) == ["1"]
        assert await box.find(blocking=True, message_id="ungrouped") == []

    @pytest.mark.parametrize("on_dead", ["unblock", "block"])
    async def test_a_replayed_message_has_its_old_place(
        self, open_box: OpenBox, on_dead: Literal["unblock", "block"]
    ) -> None:
        box = open_box(fifo=True, on_dead=on_dead)
        await box.put(*(member(str(n)) for n in range(3)))
        await box.fail(*await box.claim(1))
        await box.put(member("3"))
        await box.store.replay(box.box, Filter())
        assert names(await box.claim()) == ["0", "1", "2", "3"]

    async def test_a_replayed_message_waits_for_a_claimed_member(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(3)))
        await box.fail(*await box.claim(1))
        [second] = await box.claim(1)
        await box.store.replay(box.box, Filter())
        assert await box.claim(owner=BOB) == []
        await box.ack(second)
        assert names(await box.claim(owner=BOB)) == ["0", "2"]

    async def test_marking_a_claimed_head_dead_ends_its_batch(self, open_box: OpenBox) -> None:
        box = open_box(fifo=True)
        await box.put(*(member(str(n)) for n in range(3)))
        claimed = await box.claim()
        await box.store.mark(box.box, [Key(SOURCE, "0")], "dead", error="by hand")
        assert await box.ack(*claimed) == [False] * 3
        assert names(await box.claim(owner=BOB)) == ["1", "2"]

    async def test_an_expired_head_is_buried_on_the_way(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True)
        await box.put(member("1", lifetime=seconds(5)), member("2"), member("3", lifetime=seconds(5)), member("4"))
        await elapse(5)
        assert names(await box.claim()) == ["2", "4"]
        assert names(await box.find(states=frozenset({State.DEAD}))) == ["1", "3"]

    async def test_an_expired_head_may_block(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True, on_dead="block")
        await box.put(member("1", lifetime=seconds(5)), member("2"))
        await elapse(5)
        assert await box.claim() == []
        assert await box.state("1") is State.DEAD

    async def test_a_reap_of_an_expired_head_lets_the_group_go_on(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True)
        await box.put(member("1", lifetime=seconds(5)), member("2"))
        await elapse(5)
        assert await box.store.reap(box.box, 10) == Reaped(0, 1)
        assert names(await box.claim()) == ["2"]

    async def test_a_head_that_kills_its_workers_lets_the_group_go_on(self, open_box: OpenBox, elapse: Elapse) -> None:
        box = open_box(fifo=True, delivery=Delivery(max_deliveries=1))
        await box.put(member("1"), member("2"))
        await box.claim(1)
        await elapse(LEASE)
        assert names(await box.claim()) == ["2"]
